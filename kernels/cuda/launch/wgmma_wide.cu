// Launchers of the wide wgmma kernel, of every format that has it.
#include "kernels/cuda/device/gemm_wgmma_wide.cuh"
#include "kernels/cuda/launch/wgmma_int4.h"

namespace nibble::cuda {
namespace {

template <class Unit>
cudaError_t LaunchWide(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                       cudaStream_t stream) {
  using Shape = WideShape;
  constexpr int kStageBytes = WideStage<typename Unit::Half>::kBytes;
  constexpr int kBefore = Unit::kTableBytes + kWgmmaAlign + Shape::kGroups * Shape::kStagingBytes;
  static_assert((kWgmmaSharedBytes - kBefore) / kStageBytes >= 4, "a ring of two units");
  WgmmaMaps maps;
  cudaError_t error = EncodeXMap(view, launch, kWideBoxRows, maps.x);
  if (error == cudaSuccess) error = EncodeWeightMaps<Unit, Shape, 2>(view, maps);
  if (error != cudaSuccess) return error;
  WgmmaArgs args = WgmmaArgsOf<Unit>(view, plan, launch);
  args.halved_tiles = static_cast<int32_t>(plan.halved_tiles);
  args.stages = std::min(kWgmmaMaxStages, (kWgmmaSharedBytes - kBefore) / kStageBytes);
  const auto kernel = WgmmaWideKernel<BF16Pairs, Unit>;
  // The same for every launch: another thread may be between this call and its own launch.
  error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWgmmaSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(Shape::kThreads),
                         static_cast<size_t>(kBefore + args.stages * kStageBytes), stream, view,
                         args, maps);
}

template <int kScales, bool kZeroPoints>
struct WideInt4Unit : WgmmaInt4Unit<BF16Pairs, kScales, kZeroPoints> {
  using Half = WideInt4Half<BF16Pairs, (kScales + 1) / 2, kZeroPoints>;
};

template <int kScales>
struct WideTableUnit : RingTableUnit<BF16Pairs, kScales, 256> {
  using Half = WideTableHalf<BF16Pairs, 256>;
};

template <bool kZeroPoints>
cudaError_t LaunchInt4(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                       cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchWide<WideInt4Unit<1, kZeroPoints>>(view, plan, launch, stream);
    case 2:
      return LaunchWide<WideInt4Unit<2, kZeroPoints>>(view, plan, launch, stream);
    case 4:
      return LaunchWide<WideInt4Unit<4, kZeroPoints>>(view, plan, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchWgmmaWideInt4(const WeightView& view, const WgmmaPlan& plan,
                                const WgmmaLaunch& launch, cudaStream_t stream) {
  return view.zero_points == nullptr ? LaunchInt4<false>(view, plan, launch, stream)
                                     : LaunchInt4<true>(view, plan, launch, stream);
}

cudaError_t LaunchWgmmaWideTable(const WeightView& view, const WgmmaPlan& plan,
                                 const WgmmaLaunch& launch, cudaStream_t stream) {
  return launch.scales_per_unit == 1 ? LaunchWide<WideTableUnit<1>>(view, plan, launch, stream)
                                     : LaunchWide<WideTableUnit<2>>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
