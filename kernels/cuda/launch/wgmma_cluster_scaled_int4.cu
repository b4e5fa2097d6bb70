#include "kernels/cuda/launch/wgmma_cluster_scaled_variants.h"

namespace nibble::cuda {

cudaError_t LaunchClusterScaledInt4Symmetric(const WeightView& view, const WgmmaPlan& plan,
                                             const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterScaledInt4<false>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
