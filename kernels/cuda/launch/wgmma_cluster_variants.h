// Which variant of WgmmaClusterKernel runs, the same for every format. Included by the launchers
// alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_VARIANTS_H_

#include <type_traits>

#include "kernels/cuda/device/gemm_wgmma_cluster.cuh"
#include "kernels/cuda/device/quad_units.cuh"
#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {

template <class Unit, class Shape, class Kernel>
cudaError_t LaunchClusterKernel(Kernel kernel, const WeightView& view, const WgmmaPlan& plan,
                                const WgmmaLaunch& launch, cudaStream_t stream) {
  constexpr int kSharedBytes = WgmmaClusterRings<Unit, Shape>::kSharedBytes;
  static_assert(kSharedBytes <= kWgmmaSharedBytes);
  WgmmaMaps maps;
  cudaError_t error = EncodeXUnits(view, launch, Shape::kColumns, maps.x);
  if (error == cudaSuccess) error = EncodeWeightMaps<Unit, Shape>(view, maps);
  if (error != cudaSuccess) return error;
  const WgmmaArgs args = WgmmaArgsOf<Unit>(view, plan, launch);
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependentClusters(Shape::kBlocks, kernel, dim3(static_cast<unsigned>(plan.blocks)),
                                 dim3(Shape::kThreads), kSharedBytes, stream, view, args, maps);
}

// run(columns, splits), both constants, of a plan of pairs.
template <class Run>
cudaError_t WithPair(const WgmmaPlan& plan, Run run) {
  const auto with_splits = [&](auto splits) {
    switch (plan.columns) {
      case 16:
        return run(std::integral_constant<int, 16>{}, splits);
      case 32:
        return run(std::integral_constant<int, 32>{}, splits);
      case 64:
        return run(std::integral_constant<int, 64>{}, splits);
      case 128:
        return run(std::integral_constant<int, 128>{}, splits);
      default:
        return cudaErrorInvalidValue;
    }
  };
  switch (plan.pair_outputs) {
    case 64:
      return with_splits(std::integral_constant<int, 4>{});
    case 128:
      return with_splits(std::integral_constant<int, 2>{});
    case 256:
      return with_splits(std::integral_constant<int, 1>{});
    default:
      return cudaErrorInvalidValue;
  }
}

// kLeastColumns: fewer are those of WgmmaClusterTurnsKernel.
template <class Pairs, class Unit, int kLeastColumns = 16>
cudaError_t LaunchClusterUnits(const WeightView& view, const WgmmaPlan& plan,
                               const WgmmaLaunch& launch, cudaStream_t stream) {
  return WithPair(plan, [&](auto columns, auto splits) {
    constexpr int kColumns = decltype(columns)::value;
    constexpr int kSplits = decltype(splits)::value;
    // Two warpgroups have registers for totals of 128 columns. More outputs of BF16 x are those of
    // WgmmaClusterScaledKernel.
    constexpr bool kMany = kColumns == 128;
    constexpr int kLeastSplits = std::is_same_v<Pairs, F16Pairs> ? 2 : 4;
    if constexpr (kColumns < kLeastColumns || (kMany && kSplits < kLeastSplits)) {
      return cudaErrorInvalidValue;
    } else {
      using Shape = WgmmaClusterShape<kColumns, kMany ? 2 : 4, kMany ? kSplits / 2 : kSplits>;
      return LaunchClusterKernel<Unit, Shape>(WgmmaClusterKernel<Pairs, Unit, Shape>, view, plan,
                                              launch, stream);
    }
  });
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_VARIANTS_H_
