#include "kernels/cuda/launch/gemm_wgmma.h"
#include "kernels/cuda/launch/wgmma_cluster_order.h"

namespace nibble::cuda {

cudaError_t LaunchClusterTurnsInt4(const WeightView& view, const WgmmaPlan& plan,
                                   const WgmmaLaunch& launch, cudaStream_t stream) {
  const bool zero_points = view.zero_points != nullptr;
  // The GEMV that adds the same chains meets x as it lies.
  const bool in_order = !plan.chains && PairsOrderX(plan.columns, plan.pair_outputs);
  const auto ordered =
      zero_points ? LaunchClusterOrderedTurnsInt4Zero : LaunchClusterOrderedTurnsInt4Symmetric;
  const auto quad =
      zero_points ? LaunchClusterQuadTurnsInt4Zero : LaunchClusterQuadTurnsInt4Symmetric;
  return (in_order ? ordered : quad)(view, plan, launch, stream);
}

}  // namespace nibble::cuda
