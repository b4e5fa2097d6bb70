// Which variant of WgmmaScaledKernel runs. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_SCALED_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_SCALED_VARIANTS_H_

#include "kernels/cuda/device/gemm_wgmma_scaled.cuh"
#include "kernels/cuda/launch/wgmma_factors.h"
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
  WgmmaArgs args = WgmmaArgsOf<Unit>(view, plan, launch);
  args.halved_tiles = static_cast<int32_t>(plan.halved_tiles);
  cudaError_t error =
      LaunchTiles<Unit, Shape, 2>(WgmmaScaledKernel<Unit, Shape, kStages>, Stage::kBoxRows,
                                  kSharedBytes, args, view, plan, launch, stream);
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
      return WithGroups<64, true>(plan, [&](auto shape) {
        return LaunchScaledShape<Unit, decltype(shape)>(view, plan, launch, stream);
      });
    }
  }
  return LaunchScaledShape<Unit, WgmmaShape<128, 4, true>>(view, plan, launch, stream);
}

template <int kScales, bool kZeroPoints>
using ScaledBase = WgmmaInt4Unit<BF16Pairs, kScales, kZeroPoints>;

template <bool kZeroPoints>
cudaError_t LaunchScaledInt4(const WeightView& view, const WgmmaPlan& plan,
                             const WgmmaLaunch& launch, cudaStream_t stream) {
  return WithInt4Factors<ScaledBase, kZeroPoints>(view, launch, [&](auto types) {
    using Types = decltype(types);
    return LaunchScaledUnit<typename Types::Base, typename Types::Factors>(view, plan, launch,
                                                                           stream);
  });
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_SCALED_VARIANTS_H_
