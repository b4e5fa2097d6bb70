// Which variant of WgmmaClusterTurnsKernel runs. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_TURNS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_TURNS_H_

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

// UnitOf: by zero points and the type of scales.
template <template <bool, HalfScales> class UnitOf, bool kZeroPoints, ClusterX kX>
cudaError_t LaunchClusterTurnsScales(const WeightView& view, const WgmmaPlan& plan,
                                     const WgmmaLaunch& launch, cudaStream_t stream) {
  using OfBF16 = UnitOf<kZeroPoints, HalfScales::kBF16>;
  using OfF16 = UnitOf<kZeroPoints, HalfScales::kF16>;
  return view.scale_type == Element::kBF16
             ? LaunchClusterTurnsUnit<OfBF16, kX>(view, plan, launch, stream)
             : LaunchClusterTurnsUnit<OfF16, kX>(view, plan, launch, stream);
}

// x put in the order of words.
template <bool kZeroPoints>
cudaError_t LaunchClusterWordTurnsInt4(const WeightView& view, const WgmmaPlan& plan,
                                       const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterTurnsScales<TurnInt4Unit, kZeroPoints, ClusterX::kWords>(view, plan, launch,
                                                                               stream);
}

// x as it lies.
template <bool kZeroPoints>
cudaError_t LaunchClusterQuadTurnsInt4(const WeightView& view, const WgmmaPlan& plan,
                                       const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterTurnsScales<TurnQuadInt4Unit, kZeroPoints, ClusterX::kAsItLies>(
      view, plan, launch, stream);
}

// x put in the order of half words.
template <bool kZeroPoints>
cudaError_t LaunchClusterHalfWordTurnsInt4(const WeightView& view, const WgmmaPlan& plan,
                                           const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterTurnsScales<TurnHalfWordInt4Unit, kZeroPoints, ClusterX::kHalfWords>(
      view, plan, launch, stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_TURNS_H_
