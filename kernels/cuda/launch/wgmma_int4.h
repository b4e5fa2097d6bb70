// The INT4 launchers of the wgmma kernel by type of x: a file of their own each, to build at once.
// Included by these alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_INT4_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_INT4_H_

#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {

// Scales of either type: beside the multiplication telling them apart costs nothing.
template <class Pairs, int kScales, bool kZeroPoints>
struct WgmmaInt4Unit : RingInt4Unit<Pairs, kScales, kZeroPoints, true> {
  __device__ float2 Scale(const WeightView& w, int i) const {
    return WidenHalfScales(w.scale_type == Element::kBF16, this->scales[i]);
  }
};

template <class Pairs, int kScales>
cudaError_t LaunchInt4Scales(const WeightView& view, const WgmmaPlan& plan,
                             const WgmmaLaunch& launch, cudaStream_t stream) {
  return view.zero_points == nullptr
             ? LaunchWgmmaUnits<Pairs, WgmmaInt4Unit<Pairs, kScales, false>>(view, plan, launch,
                                                                             stream)
             : LaunchWgmmaUnits<Pairs, WgmmaInt4Unit<Pairs, kScales, true>>(view, plan, launch,
                                                                            stream);
}

template <class Pairs>
cudaError_t LaunchInt4Pairs(const WeightView& view, const WgmmaPlan& plan,
                            const WgmmaLaunch& launch, cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchInt4Scales<Pairs, 1>(view, plan, launch, stream);
    case 2:
      return LaunchInt4Scales<Pairs, 2>(view, plan, launch, stream);
    case 4:
      return LaunchInt4Scales<Pairs, 4>(view, plan, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchWgmmaInt4BF16(const WeightView& view, const WgmmaPlan& plan,
                                const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchWgmmaInt4F16(const WeightView& view, const WgmmaPlan& plan,
                               const WgmmaLaunch& launch, cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_INT4_H_
