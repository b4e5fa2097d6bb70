// The GEMVs of chains of INT4 weights for one type of x: where K is in halves GemvOnceKernel of
// what it takes, else GemvStreamKernel; of one chain GemvRingKernel with products apart where
// registers hold x, else GemvChainKernel. Included by its launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_INT4_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_INT4_H_

#include "kernels/cuda/launch/gemv_chain_variants.h"
#include "kernels/cuda/launch/gemv_once_variants.h"
#include "kernels/cuda/launch/gemv_ring_variants.h"
#include "kernels/cuda/launch/gemv_stream_variants.h"

namespace nibble::cuda {

// LaunchGemvChainInt4 for F16 x, which gemv_chain_int4_f16.cu compiles beside the other.
cudaError_t LaunchGemvChainInt4F16(const WeightView& view, const GemvArgs& args,
                                   const GemvLaunch& launch, cudaStream_t stream);

template <class Pairs, class Unit>
cudaError_t LaunchChainInt4Unit(const WeightView& view, const GemvArgs& args,
                                const GemvLaunch& launch, cudaStream_t stream) {
  if (launch.of_half > 0) {
    using HalfWords = HalfWordInt4Unit<Unit>;
    return OnceFits(view, args, launch)
               ? LaunchOnce<Pairs, SideBySide<HalfWords>>(view, args, launch, stream)
               : LaunchStream<Pairs, HalfWords>(view, args, launch, stream);
  }
  // Products of four groups a unit do not fit the registers.
  if constexpr (Unit::kScalesPerUnit <= 2) {
    if (view.units <= kRingHeldUnits) {
      return LaunchRing<Pairs, Unit, OrderedShape<Unit::kScalesPerUnit>>(view, args, launch,
                                                                         stream);
    }
  }
  // More on their way are slower (H200, 28672x4096, 1 row: 17.1 us against 16.8).
  return LaunchChainOf<Pairs, Unit, ChainShape<2, 2>>(view, args, launch, stream);
}

template <class Pairs, int kScales, bool kZeroPoints>
cudaError_t LaunchChainInt4Units(const WeightView& view, const GemvArgs& args,
                                 const GemvLaunch& launch, cudaStream_t stream) {
  return view.scale_type == Element::kBF16
             ? LaunchChainInt4Unit<Pairs, RingInt4Unit<Pairs, kScales, kZeroPoints, true>>(
                   view, args, launch, stream)
             : LaunchChainInt4Unit<Pairs, RingInt4Unit<Pairs, kScales, kZeroPoints, false>>(
                   view, args, launch, stream);
}

template <class Pairs, int kScales>
cudaError_t LaunchChainInt4Scales(const WeightView& view, const GemvArgs& args,
                                  const GemvLaunch& launch, cudaStream_t stream) {
  return view.zero_points == nullptr
             ? LaunchChainInt4Units<Pairs, kScales, false>(view, args, launch, stream)
             : LaunchChainInt4Units<Pairs, kScales, true>(view, args, launch, stream);
}

template <class Pairs>
cudaError_t LaunchChainInt4(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                            cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchChainInt4Scales<Pairs, 1>(view, args, launch, stream);
    case 2:
      return LaunchChainInt4Scales<Pairs, 2>(view, args, launch, stream);
    case 4:
      return LaunchChainInt4Scales<Pairs, 4>(view, args, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_INT4_H_
