#include "kernels/cuda/launch/gemv_ring_variants.h"
#include "kernels/cuda/launch/gemv_variants.h"

namespace nibble::cuda {
namespace {

template <class Pairs, int kScales, bool kBF16Scales>
cudaError_t LaunchRingScales(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                             cudaStream_t stream) {
  if (view.zero_points != nullptr) {
    return LaunchRingUnits<Pairs, RingInt4Unit<Pairs, kScales, true, kBF16Scales>>(view, args,
                                                                                   launch, stream);
  }
  return LaunchRingUnits<Pairs, RingInt4Unit<Pairs, kScales, false, kBF16Scales>>(view, args,
                                                                                  launch, stream);
}

template <class Pairs, int kScales, int kTiles>
cudaError_t LaunchScales(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                         cudaStream_t stream) {
  // Each unit's scales follow the last's.
  const bool ring = launch.ring && view.groups == view.units * kScales;
  if (ring && view.scale_type == Element::kBF16) {
    return LaunchRingScales<Pairs, kScales, true>(view, args, launch, stream);
  }
  if (ring && view.scale_type == Element::kF16) {
    return LaunchRingScales<Pairs, kScales, false>(view, args, launch, stream);
  }
  return LaunchGemvUnits<Pairs, Int4Unit<Pairs, kScales>, kTiles>(view, args, launch, stream);
}

template <class Pairs>
cudaError_t Launch(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                   cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchScales<Pairs, 1, 2>(view, args, launch, stream);
    case 2:
      return LaunchScales<Pairs, 2, 2>(view, args, launch, stream);
    case 4:
      return LaunchScales<Pairs, 4, 1>(view, args, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchGemvInt4(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                           cudaStream_t stream) {
  return launch.f16 ? Launch<F16Pairs>(view, args, launch, stream)
                    : Launch<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
