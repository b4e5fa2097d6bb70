// Which variant of WgmmaClusterScaledKernel runs. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_SCALED_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_SCALED_VARIANTS_H_

#include "kernels/cuda/device/gemm_wgmma_cluster_scaled.cuh"
#include "kernels/cuda/launch/wgmma_cluster_variants.h"
#include "kernels/cuda/launch/wgmma_factors.h"

namespace nibble::cuda {

template <class Base, class Factors>
struct ScaledQuadUnit : Base {
  using Quad = ScaledQuad<Factors>;
  static constexpr float kUnscale = Factors::kUnscale;
};

template <class Unit, class Shape>
cudaError_t LaunchClusterScaled(const WeightView& view, const WgmmaPlan& plan,
                                const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchClusterKernel<Unit, Shape>(WgmmaClusterScaledKernel<Unit, Shape>, view, plan, launch,
                                          stream);
}

template <class Base, class Factors>
cudaError_t LaunchClusterScaledUnit(const WeightView& view, const WgmmaPlan& plan,
                                    const WgmmaLaunch& launch, cudaStream_t stream) {
  using Unit = ScaledQuadUnit<Base, Factors>;
  return plan.pair_outputs == 128
             ? LaunchClusterScaled<Unit, WgmmaClusterShape<128, 4, 2>>(view, plan, launch, stream)
             : LaunchClusterScaled<Unit, WgmmaClusterShape<128, 4, 1>>(view, plan, launch, stream);
}

template <int kScales, bool kZeroPoints>
using ScaledQuadBase = QuadInt4Unit<BF16Pairs, kScales, kZeroPoints>;

template <bool kZeroPoints>
cudaError_t LaunchClusterScaledInt4(const WeightView& view, const WgmmaPlan& plan,
                                    const WgmmaLaunch& launch, cudaStream_t stream) {
  return WithInt4Factors<ScaledQuadBase, kZeroPoints>(view, launch, [&](auto types) {
    using Types = decltype(types);
    return LaunchClusterScaledUnit<typename Types::Base, typename Types::Factors>(view, plan,
                                                                                  launch, stream);
  });
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_SCALED_VARIANTS_H_
