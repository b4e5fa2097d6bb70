// Launchers of WgmmaTurnsKernel, of every format that has it.
#include "kernels/cuda/device/gemm_wgmma_turns.cuh"
#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {
namespace {

static_assert(kTurnUnits == kTurnStages);

template <class Unit, class Shape>
cudaError_t LaunchShape(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                        cudaStream_t stream) {
  constexpr int kBefore = Unit::kTableBytes + kWgmmaAlign + Shape::kGroups * Shape::kStagingBytes;
  constexpr int kSharedBytes = kBefore + kTurnStages * WgmmaStage<Unit, Shape>::kBytes;
  static_assert(kSharedBytes <= kWgmmaSharedBytes);
  WgmmaMaps maps;
  cudaError_t error = EncodeXMap(view, launch, Shape::kColumns, maps.x);
  if (error == cudaSuccess) error = EncodeWeightMaps<Unit, Shape>(view, maps);
  if (error != cudaSuccess) return error;
  WgmmaArgs args = WgmmaArgsOf<Unit>(view, plan, launch);
  args.stages = kTurnStages;
  const auto kernel = WgmmaTurnsKernel<Unit, Shape>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(Shape::kThreads),
                         kSharedBytes, stream, view, args, maps);
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
