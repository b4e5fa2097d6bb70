#include "kernels/cuda/launch/wgmma_cluster_int4.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaClusterInt4BF16Zero(const WeightView& view, const WgmmaPlan& plan,
                                           const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterInt4<BF16Pairs, true>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
