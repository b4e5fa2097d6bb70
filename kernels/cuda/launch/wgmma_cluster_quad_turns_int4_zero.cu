#include "kernels/cuda/launch/wgmma_cluster_turns.h"

namespace nibble::cuda {

cudaError_t LaunchClusterQuadTurnsInt4Zero(const WeightView& view, const WgmmaPlan& plan,
                                           const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterTurns<ClusterX::kAsItLies, true>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
