// Which variant of WgmmaScaledKernel runs. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_SCALED_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_SCALED_VARIANTS_H_

#include "kernels/cuda/device/gemm_wgmma_scaled.cuh"
#include "kernels/cuda/launch/wgmma_int4.h"

namespace nibble::cuda {

template <class Base, class Factors>
struct ScaledUnit : Base {
  using Half = ScaledHalf<Factors, Base::kScalesPerUnit>;
  static constexpr float kUnscale = Factors::kUnscale;
};

template <class Unit, class Shape>
cudaError_t LaunchScaledShape(const WeightView& view, const WgmmaPlan& plan,
                              const WgmmaLaunch& launch, cudaStream_t stream) {
  using Stage = ScaledStage<typename Unit::Half, Shape>;
  constexpr int kMostStages = 8;
  constexpr int kBefore = Unit::kTableBytes + kWgmmaAlign + Shape::kGroups * Shape::kStagingBytes;
  constexpr int kStages = std::min(kMostStages, (kWgmmaSharedBytes - kBefore) / Stage::kBytes) /
                          kScaledTurn * kScaledTurn;
  static_assert(kStages >= 2 * kScaledTurn, "a ring of two units");
  constexpr int kSharedBytes = kBefore + kStages * Stage::kBytes;
  WgmmaMaps maps;
  cudaError_t error = EncodeXMap(view, launch, Stage::kBoxRows, maps.x);
  if (error == cudaSuccess) error = EncodeWeightMaps<Unit, Shape, 2>(view, maps);
  if (error != cudaSuccess) return error;
  WgmmaArgs args = WgmmaArgsOf<Unit>(view, plan, launch);
  args.halved_tiles = static_cast<int32_t>(plan.halved_tiles);
  const auto kernel = WgmmaScaledKernel<Unit, Shape, kStages>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  error = LaunchDependent(kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(Shape::kThreads),
                          kSharedBytes, stream, view, args, maps);
  if constexpr (Shape::kColumns != kWideColumns) {
    if (error == cudaSuccess) error = LaunchAddShares<Shape>(view, plan, args, stream);
  }
  return error;
}

template <class Base, class Factors>
cudaError_t LaunchScaledUnit(const WeightView& view, const WgmmaPlan& plan,
                             const WgmmaLaunch& launch, cudaStream_t stream) {
  using Unit = ScaledUnit<Base, Factors>;
  if (plan.columns == kWideColumns) {
    return LaunchScaledShape<Unit, WideShape>(view, plan, launch, stream);
  }
  if constexpr (Unit::kTableBytes > 0) {
    if (plan.columns == 64) {
      return LaunchScaledShape<Unit, WgmmaShape<64, 4, true>>(view, plan, launch, stream);
    }
  }
  return LaunchScaledShape<Unit, WgmmaShape<128, 4, true>>(view, plan, launch, stream);
}

template <bool kZeroPoints>
cudaError_t LaunchScaledInt4(const WeightView& view, const WgmmaPlan& plan,
                             const WgmmaLaunch& launch, cudaStream_t stream) {
  // The types of more scales are told apart at run time: kernels are many.
  using OfEither = Int4Factors<kZeroPoints, HalfScales::kEither>;
  switch (launch.scales_per_unit) {
    case 1: {
      using Base = WgmmaInt4Unit<BF16Pairs, 1, kZeroPoints>;
      using OfBF16 = Int4Factors<kZeroPoints, HalfScales::kBF16>;
      using OfF16 = Int4Factors<kZeroPoints, HalfScales::kF16>;
      return view.scale_type == Element::kBF16
                 ? LaunchScaledUnit<Base, OfBF16>(view, plan, launch, stream)
                 : LaunchScaledUnit<Base, OfF16>(view, plan, launch, stream);
    }
    case 2:
      return LaunchScaledUnit<WgmmaInt4Unit<BF16Pairs, 2, kZeroPoints>, OfEither>(view, plan,
                                                                                  launch, stream);
    case 4:
      return LaunchScaledUnit<WgmmaInt4Unit<BF16Pairs, 4, kZeroPoints>, OfEither>(view, plan,
                                                                                  launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_SCALED_VARIANTS_H_
