#include "kernels/cuda/launch/wgmma_cluster_scaled_variants.h"

namespace nibble::cuda {

cudaError_t LaunchClusterScaledTable(const WeightView& view, const WgmmaPlan& plan,
                                     const WgmmaLaunch& launch, cudaStream_t stream) {
  return launch.scales_per_unit == 1
             ? LaunchClusterScaledUnit<QuadTableUnit<BF16Pairs, 1>, TableFactors>(view, plan,
                                                                                  launch, stream)
             : LaunchClusterScaledUnit<QuadTableUnit<BF16Pairs, 2>, TableFactors>(view, plan,
                                                                                  launch, stream);
}

}  // namespace nibble::cuda
