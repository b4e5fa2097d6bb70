#include "kernels/cuda/launch/wgmma_cluster_scaled_variants.h"

namespace nibble::cuda {

cudaError_t LaunchClusterScaledInt4Zero(const WeightView& view, const WgmmaPlan& plan,
                                        const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterScaledInt4<true>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
