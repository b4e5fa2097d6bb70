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
  if (plan.columns == 16) return LaunchShape<Unit, WgmmaShape<16, 4>>(view, plan, launch, stream);
  if (plan.columns == 32) return LaunchShape<Unit, WgmmaShape<32, 4>>(view, plan, launch, stream);
  // Of table formats these are scaled.
  if constexpr (Unit::kTableBytes == 0) {
    return LaunchShape<Unit, WgmmaShape<64, 4>>(view, plan, launch, stream);
  }
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
