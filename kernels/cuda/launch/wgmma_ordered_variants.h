// Which variant of WgmmaKernel runs where sums are added in the order of the GEMV. Included by the
// launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_ORDERED_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_ORDERED_VARIANTS_H_

#include "kernels/cuda/launch/wgmma_int4.h"

namespace nibble::cuda {

template <class Pairs, class Unit>
cudaError_t LaunchOrdered(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                          cudaStream_t stream) {
  return plan.columns == 32
             ? LaunchWgmma<Pairs, Unit, WgmmaShape<32, 4, false, true>>(view, plan, launch, stream)
             : LaunchWgmma<Pairs, Unit, WgmmaShape<64, 2, false, true>>(view, plan, launch, stream);
}

template <class Pairs, int kScales>
cudaError_t LaunchOrderedInt4Scales(const WeightView& view, const WgmmaPlan& plan,
                                    const WgmmaLaunch& launch, cudaStream_t stream) {
  return view.zero_points == nullptr ? LaunchOrdered<Pairs, WgmmaInt4Unit<Pairs, kScales, false>>(
                                           view, plan, launch, stream)
                                     : LaunchOrdered<Pairs, WgmmaInt4Unit<Pairs, kScales, true>>(
                                           view, plan, launch, stream);
}

template <class Pairs>
cudaError_t LaunchOrderedInt4(const WeightView& view, const WgmmaPlan& plan,
                              const WgmmaLaunch& launch, cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchOrderedInt4Scales<Pairs, 1>(view, plan, launch, stream);
    case 2:
      return LaunchOrderedInt4Scales<Pairs, 2>(view, plan, launch, stream);
    case 4:
      return LaunchOrderedInt4Scales<Pairs, 4>(view, plan, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template <class Pairs>
cudaError_t LaunchOrderedTable(const WeightView& view, const WgmmaPlan& plan,
                               const WgmmaLaunch& launch, cudaStream_t stream) {
  return launch.scales_per_unit == 1
             ? LaunchOrdered<Pairs, RingTableUnit<Pairs, 1, 256>>(view, plan, launch, stream)
             : LaunchOrdered<Pairs, RingTableUnit<Pairs, 2, 256>>(view, plan, launch, stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_ORDERED_VARIANTS_H_
