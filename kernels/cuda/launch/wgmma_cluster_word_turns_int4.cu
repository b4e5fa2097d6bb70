#include "kernels/cuda/launch/wgmma_cluster_turns.h"

namespace nibble::cuda {

cudaError_t LaunchClusterWordTurnsInt4Symmetric(const WeightView& view, const WgmmaPlan& plan,
                                                const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterTurns<ClusterX::kWords, false>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
