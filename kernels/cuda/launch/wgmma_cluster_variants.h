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

template <class Pairs, class Unit, int kSplits>
cudaError_t LaunchClusterColumns(const WeightView& view, const WgmmaPlan& plan,
                                 const WgmmaLaunch& launch, cudaStream_t stream) {
  const auto run = [&](auto shape) {
    using Shape = decltype(shape);
    return LaunchClusterKernel<Unit, Shape>(WgmmaClusterKernel<Pairs, Unit, Shape>, view, plan,
                                            launch, stream);
  };
  switch (plan.columns) {
    case 16:
      return run(WgmmaClusterShape<16, 4, kSplits>{});
    case 32:
      return run(WgmmaClusterShape<32, 4, kSplits>{});
    case 64:
      return run(WgmmaClusterShape<64, 4, kSplits>{});
    default:
      // Two warpgroups have registers for totals. More outputs of BF16 x are those of
      // WgmmaClusterScaledKernel.
      constexpr bool kF16 = std::is_same_v<Pairs, F16Pairs>;
      if constexpr (kSplits == 4) return run(WgmmaClusterShape<128, 2, 2>{});
      if constexpr (kSplits == 2 && kF16) return run(WgmmaClusterShape<128, 2, 1>{});
  }
  return cudaErrorInvalidValue;
}

template <class Pairs, class Unit>
cudaError_t LaunchClusterUnits(const WeightView& view, const WgmmaPlan& plan,
                               const WgmmaLaunch& launch, cudaStream_t stream) {
  switch (plan.pair_outputs) {
    case 64:
      return LaunchClusterColumns<Pairs, Unit, 4>(view, plan, launch, stream);
    case 128:
      return LaunchClusterColumns<Pairs, Unit, 2>(view, plan, launch, stream);
    case 256:
      return LaunchClusterColumns<Pairs, Unit, 1>(view, plan, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_VARIANTS_H_
