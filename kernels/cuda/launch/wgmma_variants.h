// Which variant of WgmmaKernel runs, the same for every format. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_VARIANTS_H_

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/gemm_wgmma.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemm_wgmma.h"
#include "kernels/cuda/launch/tensor_map.h"

namespace nibble::cuda {

// Dynamic shared memory of a block: what an SM of compute capability 9.0 lends one, less the
// barriers.
inline constexpr int kWgmmaSharedBytes = 227 * 1024 - 1024;

// More of them are slower: what waits for memory waits longer, x too (H200, INT4 28672x4096, 16
// rows: 24.5 us with 4, 25.0 with 8, 26.2 with 12).
inline constexpr int kWgmmaStages = 4;

// Both halves of a unit's inputs of `columns` rows of x in one box.
inline cudaError_t EncodeXUnits(const WeightView& view, const WgmmaLaunch& launch, int columns,
                                CUtensorMap& map) {
  TensorBox x;
  x.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  x.rank = 3;
  x.size[0] = 64;
  x.size[1] = static_cast<uint64_t>(launch.m);
  x.size[2] = static_cast<uint64_t>(view.units) * 2;
  x.stride[0] = static_cast<uint64_t>(launch.x_stride) * 2;
  x.stride[1] = 128;
  x.box[0] = 64;
  x.box[1] = static_cast<uint32_t>(columns);
  x.box[2] = 2;
  x.swizzle = true;
  return EncodeTensorMap(x, launch.x, map);
}

// Boxes of 64 inputs of `box_rows` rows of arranged x.
inline cudaError_t EncodeXMap(const WeightView& view, const WgmmaLaunch& launch, int box_rows,
                              CUtensorMap& map) {
  TensorBox x;
  x.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  x.size[0] = static_cast<uint64_t>(view.units) * kUnitInputs;
  x.size[1] = static_cast<uint64_t>(launch.m);
  x.stride[0] = x.size[0] * 2;
  x.box[0] = 64;
  x.box[1] = static_cast<uint32_t>(box_rows);
  x.swizzle = true;
  return EncodeTensorMap(x, launch.x, map);
}

// kParts: of a unit, a stage each; parts that share a scale copy it each.
template <class Unit, class Shape, int kParts = 1>
cudaError_t EncodeWeightMaps(const WeightView& view, WgmmaMaps& maps) {
  const auto tiles16 = static_cast<uint64_t>(Tiles16(view));
  const auto units = static_cast<uint64_t>(view.units);
  // 256 elements are the most that a box may have in one dimension.
  if constexpr (Unit::kBoxed) return MakeUnitMap(view, Shape::kRows, 1, maps.codes);
  TensorBox codes;
  codes.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  codes.rank = 3;
  codes.size[0] = 256 / kParts;
  codes.size[1] = units * kParts;
  codes.size[2] = tiles16;
  codes.stride[0] = Unit::kCodeBytes / kParts;
  codes.stride[1] = units * Unit::kCodeBytes;
  codes.box[0] = 256 / kParts;
  codes.box[1] = 1;
  codes.box[2] = Shape::kTiles;
  cudaError_t error = EncodeTensorMap(codes, view.codes, maps.codes);
  if (error != cudaSuccess) return error;

  TensorBox side;  // one stage's of each tile
  constexpr int kStageGroups = (Unit::kScalesPerUnit + kParts - 1) / kParts;
  side.size[1] = tiles16;
  side.box[1] = Shape::kTiles;
  if constexpr (Unit::kScaleBytes > 0) {
    constexpr int kScalesOfUnit = Unit::kScalesPerUnit * kUnitRows;
    side.box[0] = kStageGroups * kUnitRows;
    side.size[0] = units * kScalesOfUnit;
    side.stride[0] = units * Unit::kScaleBytes;
    side.type = Unit::kScaleBytes / kScalesOfUnit == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    error = EncodeTensorMap(side, view.scales, maps.scales);
    if (error != cudaSuccess) return error;
  }
  if constexpr (Unit::kZeroBytes > 0) {
    side.box[0] = kStageGroups * kUnitRows;
    side.size[0] = units * Unit::kZeroBytes;
    side.stride[0] = side.size[0];
    side.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    error = EncodeTensorMap(side, view.zero_points, maps.zero_points);
  }
  return error;
}

template <class Unit>
WgmmaArgs WgmmaArgsOf(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch) {
  WgmmaArgs args;
  args.y = launch.y;
  args.y_type = launch.y_type;
  args.y_stride = launch.y_stride;
  args.vector_y = launch.y_type != Element::kF32 && launch.y_stride % 8 == 0 && view.n % 8 == 0 &&
                  reinterpret_cast<uintptr_t>(launch.y) % 16 == 0;
  args.m = static_cast<int32_t>(launch.m);
  args.column_tiles = static_cast<int32_t>(plan.column_tiles);
  args.tiles = static_cast<int32_t>(plan.tiles);
  args.whole_tiles = static_cast<int32_t>(plan.whole_tiles);
  args.unscale = Unit::kUnscale;
  if constexpr (Unit::kScalesPerUnit == 0) {
    args.row_scales = static_cast<const float*>(view.scales);
    args.row_scales_stride = view.rows_per_scale == 1 ? 1 : 0;
  }
  args.blocks = plan.blocks;
  args.shares = launch.shares;
  return args;
}

// The kernel that adds the sums of tiles that blocks share, if there are any.
template <class Shape>
cudaError_t LaunchAddShares(const WeightView& view, const WgmmaPlan& plan, const WgmmaArgs& args,
                            cudaStream_t stream) {
  const int64_t shared_tiles = plan.SharedTiles();
  if (shared_tiles == 0) return cudaSuccess;
  return LaunchDependent(AddSharesKernel<Shape>,
                         dim3(static_cast<unsigned>(shared_tiles * Shape::kVectors)),
                         dim3(Shape::kMultiplying), 0, stream, view, args);
}

// A kernel of tiles: columns rows of x in a box, kStagesOfUnit stages a unit, so many bytes of
// shared memory.
template <class Unit, class Shape, int kStagesOfUnit = 1, class Kernel>
cudaError_t LaunchTiles(Kernel kernel, int columns, int bytes, const WgmmaArgs& args,
                        const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                        cudaStream_t stream) {
  WgmmaMaps maps;
  cudaError_t error = kStagesOfUnit == 1 ? EncodeXUnits(view, launch, columns, maps.x)
                                         : EncodeXMap(view, launch, columns, maps.x);
  if (error == cudaSuccess) error = EncodeWeightMaps<Unit, Shape, kStagesOfUnit>(view, maps);
  if (error != cudaSuccess) return error;
  // The same for every launch: another thread may be between this call and its own launch.
  error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWgmmaSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(Shape::kThreads),
                         static_cast<size_t>(bytes), stream, view, args, maps);
}

template <class Pairs, class Unit, class Shape>
cudaError_t LaunchWgmma(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                        cudaStream_t stream) {
  constexpr int kStageBytes = WgmmaStage<Unit, Shape>::kBytes;
  constexpr int kBefore = Unit::kTableBytes + kWgmmaAlign + Shape::kGroups * Shape::kStagingBytes;
  static_assert((kWgmmaSharedBytes - kBefore) / kStageBytes >= 2, "a ring of two stages");
  WgmmaArgs args = WgmmaArgsOf<Unit>(view, plan, launch);
  args.stages = std::min(kWgmmaStages, (kWgmmaSharedBytes - kBefore) / kStageBytes);
  const cudaError_t error = LaunchTiles<Unit, Shape>(
      WgmmaKernel<Pairs, Unit, Shape>, Shape::kColumns, kBefore + args.stages * kStageBytes, args,
      view, plan, launch, stream);
  return error == cudaSuccess ? LaunchAddShares<Shape>(view, plan, args, stream) : error;
}

// run(shape) of the plan's warpgroups, of up to 64 rows of x.
template <int kColumns, bool kScaled, class Run>
cudaError_t WithGroups(const WgmmaPlan& plan, Run run) {
  return plan.groups == 3 ? run(WgmmaShape<kColumns, 3, kScaled>{})
                          : run(WgmmaShape<kColumns, 4, kScaled>{});
}

template <class Pairs, class Unit>
cudaError_t LaunchWgmmaUnits(const WeightView& view, const WgmmaPlan& plan,
                             const WgmmaLaunch& launch, cudaStream_t stream) {
  const auto run = [&](auto shape) {
    return LaunchWgmma<Pairs, Unit, decltype(shape)>(view, plan, launch, stream);
  };
  // Codes without scales of their own need no totals. Of others with BF16 x, wider tiles are those
  // of WgmmaScaledKernel.
  constexpr bool kPlain = Unit::kScalesPerUnit == 0;
  constexpr bool kF16 = std::is_same_v<Pairs, F16Pairs>;
  switch (plan.columns) {
    case 16:
      return WithGroups<16, kPlain>(plan, run);
    case 32:
      return WithGroups<32, kPlain>(plan, run);
    case 64:
      return WithGroups<64, kPlain>(plan, run);
    default:
      if constexpr (kPlain) return run(WgmmaShape<128, 4, true>{});
      if constexpr (!kPlain && kF16) return run(WgmmaShape<128, 2>{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_VARIANTS_H_
