// The INT4 launchers of the cluster kernel: a file of their own for types of x and kinds of zero
// points, to build at once. Included by these alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_INT4_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_INT4_H_

#include "kernels/cuda/launch/wgmma_cluster_variants.h"

namespace nibble::cuda {

template <class Pairs, bool kZeroPoints>
cudaError_t LaunchClusterInt4(const WeightView& view, const WgmmaPlan& plan,
                              const WgmmaLaunch& launch, cudaStream_t stream) {
  constexpr int kLeastColumns = std::is_same_v<Pairs, BF16Pairs> ? 128 : 16;  // of one scale
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchClusterUnits<Pairs, QuadInt4Unit<Pairs, 1, kZeroPoints>, kLeastColumns>(
          view, plan, launch, stream);
    case 2:
      return LaunchClusterUnits<Pairs, QuadInt4Unit<Pairs, 2, kZeroPoints>>(view, plan, launch,
                                                                            stream);
    case 4:
      return LaunchClusterUnits<Pairs, QuadInt4Unit<Pairs, 4, kZeroPoints>>(view, plan, launch,
                                                                            stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_INT4_H_
