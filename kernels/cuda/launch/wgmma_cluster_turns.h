// Which variant of WgmmaClusterTurnsKernel runs. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_TURNS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_TURNS_H_

#include <type_traits>

#include "kernels/cuda/device/gemm_wgmma_cluster_turns.cuh"
#include "kernels/cuda/launch/wgmma_cluster_order.h"
#include "kernels/cuda/launch/wgmma_cluster_variants.h"

namespace nibble::cuda {

template <class Unit, ClusterX kX>
cudaError_t LaunchClusterTurnsUnit(const WeightView& view, const WgmmaPlan& plan,
                                   const WgmmaLaunch& launch, cudaStream_t stream) {
  return WithPair(plan, [&](auto columns, auto splits) {
    constexpr int kColumns = decltype(columns)::value;
    constexpr int kSplits = decltype(splits)::value;
    constexpr int kOutputs = 256 / kSplits;
    if constexpr (kColumns > 64 || (kX != PairsX(kColumns, kOutputs, false) &&
                                    kX != PairsX(kColumns, kOutputs, true))) {
      return cudaErrorInvalidValue;
    } else {
      using Shape = WgmmaClusterTurnsShape<kColumns, kSplits, kX>;
      return LaunchClusterKernel<Unit, Shape>(WgmmaClusterTurnsKernel<Unit, Shape>, view, plan,
                                              launch, stream);
    }
  });
}

// Units whose codes meet x so.
template <ClusterX kX, bool kZeroPoints, HalfScales kScaleType>
using TurnsUnit = std::conditional_t<
    kX == ClusterX::kWords, TurnInt4Unit<kZeroPoints, kScaleType>,
    std::conditional_t<kX == ClusterX::kHalfWords, TurnHalfWordInt4Unit<kZeroPoints, kScaleType>,
                       TurnQuadInt4Unit<kZeroPoints, kScaleType>>>;

template <ClusterX kX, bool kZeroPoints>
cudaError_t LaunchClusterTurns(const WeightView& view, const WgmmaPlan& plan,
                               const WgmmaLaunch& launch, cudaStream_t stream) {
  using OfBF16 = TurnsUnit<kX, kZeroPoints, HalfScales::kBF16>;
  using OfF16 = TurnsUnit<kX, kZeroPoints, HalfScales::kF16>;
  return view.scale_type == Element::kBF16
             ? LaunchClusterTurnsUnit<OfBF16, kX>(view, plan, launch, stream)
             : LaunchClusterTurnsUnit<OfF16, kX>(view, plan, launch, stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_TURNS_H_
