#include "kernels/cuda/launch/wgmma_cluster_int4.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaClusterInt4F16Zero(const WeightView& view, const WgmmaPlan& plan,
                                          const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterInt4<F16Pairs, true>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
