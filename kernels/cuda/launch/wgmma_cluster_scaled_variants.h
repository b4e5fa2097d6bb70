// Which variant of WgmmaClusterScaledKernel runs. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_SCALED_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_SCALED_VARIANTS_H_

#include "kernels/cuda/device/gemm_wgmma_cluster_scaled.cuh"
#include "kernels/cuda/launch/wgmma_cluster_variants.h"

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

template <bool kZeroPoints>
cudaError_t LaunchClusterScaledInt4(const WeightView& view, const WgmmaPlan& plan,
                                    const WgmmaLaunch& launch, cudaStream_t stream) {
  // The types of more scales are told apart at run time: kernels are many.
  using OfEither = Int4Factors<kZeroPoints, HalfScales::kEither>;
  switch (launch.scales_per_unit) {
    case 1: {
      using Base = QuadInt4Unit<BF16Pairs, 1, kZeroPoints>;
      using OfBF16 = Int4Factors<kZeroPoints, HalfScales::kBF16>;
      using OfF16 = Int4Factors<kZeroPoints, HalfScales::kF16>;
      return view.scale_type == Element::kBF16
                 ? LaunchClusterScaledUnit<Base, OfBF16>(view, plan, launch, stream)
                 : LaunchClusterScaledUnit<Base, OfF16>(view, plan, launch, stream);
    }
    case 2:
      return LaunchClusterScaledUnit<QuadInt4Unit<BF16Pairs, 2, kZeroPoints>, OfEither>(
          view, plan, launch, stream);
    case 4:
      return LaunchClusterScaledUnit<QuadInt4Unit<BF16Pairs, 4, kZeroPoints>, OfEither>(
          view, plan, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_SCALED_VARIANTS_H_
