// The GEMV of INT4 weights for one type of x. Included by its launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_INT4_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_INT4_H_

#include "kernels/cuda/launch/gemv_slots_variants.h"
#include "kernels/cuda/launch/gemv_variants.h"

namespace nibble::cuda {

// LaunchGemvInt4 for F16 x, which gemv_int4_f16.cu compiles beside the other.
cudaError_t LaunchGemvInt4F16(const WeightView& view, const GemvArgs& args,
                              const GemvLaunch& launch, cudaStream_t stream);

template <class Pairs, int kScales, bool kBF16Scales>
cudaError_t LaunchGemvInt4Units(const WeightView& view, const GemvArgs& args,
                                const GemvLaunch& launch, cudaStream_t stream) {
  if (view.zero_points != nullptr) {
    return LaunchFourBitUnits<Pairs, RingInt4Unit<Pairs, kScales, true, kBF16Scales>>(
        view, args, launch, stream);
  }
  return LaunchFourBitUnits<Pairs, RingInt4Unit<Pairs, kScales, false, kBF16Scales>>(
      view, args, launch, stream);
}

template <class Pairs, int kScales, int kTiles>
cudaError_t LaunchGemvInt4Scales(const WeightView& view, const GemvArgs& args,
                                 const GemvLaunch& launch, cudaStream_t stream) {
  // Each unit's scales follow the last's.
  const bool ring = launch.ring && view.groups == view.units * kScales;
  if (ring && view.scale_type == Element::kBF16) {
    return LaunchGemvInt4Units<Pairs, kScales, true>(view, args, launch, stream);
  }
  if (ring && view.scale_type == Element::kF16) {
    return LaunchGemvInt4Units<Pairs, kScales, false>(view, args, launch, stream);
  }
  return LaunchGemvUnits<Pairs, Int4Unit<Pairs, kScales>, kTiles>(view, args, launch, stream);
}

template <class Pairs>
cudaError_t LaunchGemvInt4Of(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                             cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchGemvInt4Scales<Pairs, 1, 2>(view, args, launch, stream);
    case 2:
      return LaunchGemvInt4Scales<Pairs, 2, 2>(view, args, launch, stream);
    case 4:
      return LaunchGemvInt4Scales<Pairs, 4, 1>(view, args, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_INT4_H_
