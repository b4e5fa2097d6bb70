// Launchers of WgmmaTurnsKernel, of every format that has it.
#include "kernels/cuda/device/gemm_wgmma_turns.cuh"
#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {
namespace {

template <class Unit, class Shape>
cudaError_t LaunchShape(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                        cudaStream_t stream) {
  constexpr int kBefore = Unit::kTableBytes + kWgmmaAlign + Shape::kGroups * Shape::kStagingBytes;
  constexpr int kSharedBytes = kBefore + kTurnUnits * WgmmaStage<Unit, Shape>::kBytes;
  static_assert(kSharedBytes <= kWgmmaSharedBytes);
  WgmmaArgs args = WgmmaArgsOf<Unit>(view, plan, launch);
  args.stages = kTurnUnits;
  return LaunchTiles<Unit, Shape>(WgmmaTurnsKernel<Unit, Shape>, Shape::kColumns, kSharedBytes,
                                  args, view, plan, launch, stream);
}

template <class Unit>
cudaError_t LaunchUnit(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                       cudaStream_t stream) {
  const auto run = [&](auto shape) {
    return LaunchShape<Unit, decltype(shape)>(view, plan, launch, stream);
  };
  if (plan.columns == 16) return WithGroups<16, false>(plan, run);
  if (plan.columns == 32) return WithGroups<32, false>(plan, run);
  // Of table formats these are scaled.
  if constexpr (Unit::kTableBytes == 0) return WithGroups<64, false>(plan, run);
  return cudaErrorInvalidValue;
}

template <bool kZeroPoints>
cudaError_t LaunchInt4(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                       cudaStream_t stream) {
  return view.scale_type == Element::kBF16
             ? LaunchUnit<TurnInt4Unit<kZeroPoints, HalfScales::kBF16>>(view, plan, launch, stream)
             : LaunchUnit<TurnInt4Unit<kZeroPoints, HalfScales::kF16>>(view, plan, launch, stream);
}

}  // namespace

cudaError_t LaunchWgmmaTurnsInt4(const WeightView& view, const WgmmaPlan& plan,
                                 const WgmmaLaunch& launch, cudaStream_t stream) {
  return view.zero_points == nullptr ? LaunchInt4<false>(view, plan, launch, stream)
                                     : LaunchInt4<true>(view, plan, launch, stream);
}

cudaError_t LaunchWgmmaTurnsTable(const WeightView& view, const WgmmaPlan& plan,
                                  const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchUnit<TurnTableUnit>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
