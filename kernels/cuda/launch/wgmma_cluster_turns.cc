#include "kernels/cuda/launch/gemm_wgmma.h"
#include "kernels/cuda/launch/wgmma_cluster_order.h"

namespace nibble::cuda {

cudaError_t LaunchClusterTurnsInt4(const WeightView& view, const WgmmaPlan& plan,
                                   const WgmmaLaunch& launch, cudaStream_t stream) {
  const bool zero_points = view.zero_points != nullptr;
  switch (PairsX(plan.columns, plan.pair_outputs, plan.chains)) {
    case ClusterX::kAsItLies:
      return (zero_points ? LaunchClusterQuadTurnsInt4Zero : LaunchClusterQuadTurnsInt4Symmetric)(
          view, plan, launch, stream);
    case ClusterX::kWords:
      return (zero_points ? LaunchClusterWordTurnsInt4Zero : LaunchClusterWordTurnsInt4Symmetric)(
          view, plan, launch, stream);
    case ClusterX::kHalfWords:
      break;
  }
  return (zero_points ? LaunchClusterHalfWordTurnsInt4Zero
                      : LaunchClusterHalfWordTurnsInt4Symmetric)(view, plan, launch, stream);
}

}  // namespace nibble::cuda
