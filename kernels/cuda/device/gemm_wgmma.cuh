// Matmul for more rows of x than the GEMV takes, on compute capability 9.0a: decoded weights are
// the register operand of wgmma, x is its shared one.
//
// A block takes kRows outputs, kColumns rows of x and a range of K at a time. One warp produces:
// a stage of the ring is one unit (128 inputs) of every tile of 16 outputs, with its scales, and
// the same inputs of x. Each warpgroup multiplies 64 of the outputs: it loads its codes from the
// stage, decodes the half of a unit while the tensor cores work on the half before, and adds the
// sums of a scale's inputs, multiplied by the scale, to its totals in binary32.
//
//   device memory   x, codes, scales, zero points
//        | tensor copies, complete on `full`
//   ring            [stage]: x [2][kColumns][64] with the 128-byte swizzle | codes [tile] | scales |
//        |          zero points; given back on `empty`
//   registers       decode -> wgmma m64 x kColumns x k16 -> sums * scales -> totals
//        |
//   y               + bias; or, where K is split, totals to memory: the block that comes last to a
//                   tile adds them in the order of the splits.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/ring_units.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/wgmma_args.cuh"

namespace nibble::cuda {

inline constexpr int kWgmmaMaxStages = 12;
inline constexpr int kWgmmaRows = 64;  // of a warpgroup
inline constexpr int kWgmmaAlign = 1024;

template <int kColumns_, int kGroups_>
struct WgmmaShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kRows = kGroups * kWgmmaRows;
  static constexpr int kTiles = kRows / kUnitRows;
  static constexpr int kMultiplying = kGroups * 128;  // threads
  // The producer is a warpgroup too, so that it can pass its registers on.
  static constexpr int kThreads = kMultiplying + 128;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kRegisters = kGroups == 4 ? 112 : 240;
};

// Where the parts of a stage lie, in bytes.
template <class Unit, class Shape>
struct WgmmaStage {
  static constexpr int kHalfBytes = Shape::kColumns * 128;
  static constexpr int kCodesAt = 2 * kHalfBytes;
  static constexpr int kScalesAt = kCodesAt + Shape::kTiles * Unit::kCodeBytes;
  static constexpr int kZerosAt = kScalesAt + Shape::kTiles * Unit::kScaleBytes;
  static constexpr int kFilled = kZerosAt + Shape::kTiles * Unit::kZeroBytes;
  static constexpr int kBytes = (kFilled + kWgmmaAlign - 1) / kWgmmaAlign * kWgmmaAlign;
};

// An item and the units of K that it takes.
struct WgmmaItem {
  int32_t row_tile;
  int32_t column_tile;
  int32_t split;
  int32_t first;
  int32_t end;

  __device__ WgmmaItem(const WgmmaArgs& args, int32_t units, int32_t index) {
    split = index % args.splits;
    const int32_t tile = index / args.splits;
    column_tile = tile % args.column_tiles;
    row_tile = tile / args.column_tiles;
    first = static_cast<int32_t>(static_cast<int64_t>(units) * split / args.splits);
    end = static_cast<int32_t>(static_cast<int64_t>(units) * (split + 1) / args.splits);
  }
  __device__ static int32_t Count(const WgmmaArgs& args) {
    return args.row_tiles * args.column_tiles * args.splits;
  }
};

// The stages' barriers of a block.
struct WgmmaBarriers {
  uint64_t full[kWgmmaMaxStages];
  uint64_t empty[kWgmmaMaxStages];
};

struct WgmmaSlot {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void Advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The producing thread. The weights of the first stages are on their way before x is there.
template <class Unit, class Shape>
__device__ inline void ProduceStages(const WeightView& w, const WgmmaArgs& args,
                                     const WgmmaMaps& maps, uint32_t ring, uint32_t full,
                                     uint32_t empty) {
  using Stage = WgmmaStage<Unit, Shape>;
  const uint64_t once = args.column_tiles == 1 ? EvictFirstPolicy() : EvictNormalPolicy();
  const uint64_t again = EvictNormalPolicy();
  const int32_t items = WgmmaItem::Count(args);
  const auto step = static_cast<int32_t>(gridDim.x);
  const auto copy_weights = [&](const WgmmaItem& item, int32_t unit, int stage) {
    const uint32_t to = ring + stage * Stage::kBytes;
    const uint32_t barrier = full + stage * 8;
    const int32_t tile = item.row_tile * Shape::kTiles;
    ArriveExpecting(barrier, Stage::kFilled);
    TensorCopy3(to + Stage::kCodesAt, &maps.codes, 0, unit, tile, barrier, once);
    if constexpr (Unit::kScaleBytes > 0) {
      constexpr int kScalesOfUnit = Unit::kScalesPerUnit * kUnitRows;
      TensorCopy2(to + Stage::kScalesAt, &maps.scales, unit * kScalesOfUnit, tile, barrier, once);
    }
    if constexpr (Unit::kZeroBytes > 0) {
      TensorCopy2(to + Stage::kZerosAt, &maps.zero_points, unit * Unit::kZeroBytes, tile, barrier,
                  once);
    }
  };
  const auto copy_x = [&](const WgmmaItem& item, int32_t unit, int stage) {
    const uint32_t to = ring + stage * Stage::kBytes;
    const uint32_t barrier = full + stage * 8;
    const int32_t row = item.column_tile * Shape::kColumns;
    TensorCopy2(to, &maps.x, unit * kUnitInputs, row, barrier, again);
    TensorCopy2(to + Stage::kHalfBytes, &maps.x, unit * kUnitInputs + 64, row, barrier, again);
  };
  const WgmmaItem first(args, w.units, blockIdx.x);
  const int early = min(args.stages, first.end - first.first);
  for (int i = 0; i < early; ++i) copy_weights(first, first.first + i, i);
  WaitForDependencies();
  for (int i = 0; i < early; ++i) copy_x(first, first.first + i, i);
  int fill = 0;
  WgmmaSlot slot;  // the first phase of `empty` ends with the first use of a stage
  for (int32_t index = blockIdx.x; index < items; index += step) {
    const WgmmaItem item(args, w.units, index);
    for (int32_t unit = item.first; unit < item.end; ++unit, ++fill) {
      if (fill < early) {
        slot.Advance(args.stages);
        continue;
      }
      if (fill >= args.stages) WaitBarrier(empty + slot.stage * 8, slot.parity ^ 1);
      copy_weights(item, unit, slot.stage);
      copy_x(item, unit, slot.stage);
      slot.Advance(args.stages);
    }
  }
}

template <int kSize>
__device__ inline void AddScaled(float (&totals)[kSize], const float (&sums)[kSize], float2 scale) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    totals[i] = __fmaf_rn(sums[i], i % 4 < 2 ? scale.x : scale.y, totals[i]);
  }
}

// Totals of a warpgroup's 64 outputs to y.
template <class Unit, int kColumns>
__device__ inline void StoreTotals(const WeightView& w, const WgmmaArgs& args,
                                   const float (&totals)[kColumns / 2], int32_t n, int32_t row) {
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int32_t output = n + 8 * high;
    if (output >= w.n) continue;
    const float bias = w.bias == nullptr ? 0.0f : w.bias[output];
    float scale = 1.0f;
    if constexpr (Unit::kScalesPerUnit == 0) {
      scale = static_cast<const float*>(w.scales)[w.rows_per_scale == 1 ? output : 0];
    }
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const int32_t of_x = row + i / 2 * 8 + i % 2;
      if (of_x >= args.m) continue;
      float sum = __fmul_rn(totals[i / 2 * 4 + i % 2 + 2 * high], Unit::kUnscale);
      if constexpr (Unit::kScalesPerUnit == 0) sum = __fmul_rn(sum, scale);
      if (w.bias != nullptr) sum = __fadd_rn(sum, bias);
      StoreElement(args.y, args.y_type, of_x * args.y_stride + output, sum);
    }
  }
}

// Leaves a split's totals in memory. True, with the sum of all splits in `totals`, in the block
// that comes last to the tile.
template <class Shape>
__device__ inline bool CombineSplits(const WgmmaArgs& args, const WgmmaItem& item,
                                     float (&totals)[Shape::kColumns / 2], uint32_t* last) {
  constexpr int kVectors = Shape::kColumns / 8;
  const int32_t tile = item.row_tile * args.column_tiles + item.column_tile;
  const auto at = [&](int32_t split, int vector) {
    const int64_t index = (static_cast<int64_t>(tile) * args.splits + split) * kVectors + vector;
    return reinterpret_cast<float4*>(args.partials) + index * Shape::kMultiplying + threadIdx.x;
  };
  const auto barrier = [] {
    asm volatile("bar.sync 1, %0;" ::"n"(Shape::kMultiplying) : "memory");
  };
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    __stcg(at(item.split, i), make_float4(totals[4 * i], totals[4 * i + 1], totals[4 * i + 2],
                                          totals[4 * i + 3]));
  }
  __threadfence();
  barrier();
  if (threadIdx.x == 0) {
    *last = atomicAdd(args.done + tile, 1u) + 1 == static_cast<uint32_t>(args.splits) ? 1 : 0;
    if (*last != 0) args.done[tile] = 0;
  }
  barrier();
  const bool is_last = *last != 0;
  if (!is_last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < Shape::kColumns / 2; ++i) totals[i] = 0.0f;
#pragma unroll 4
  for (int32_t split = 0; split < args.splits; ++split) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 part = __ldcg(at(split, i));
      totals[4 * i] = __fadd_rn(totals[4 * i], part.x);
      totals[4 * i + 1] = __fadd_rn(totals[4 * i + 1], part.y);
      totals[4 * i + 2] = __fadd_rn(totals[4 * i + 2], part.z);
      totals[4 * i + 3] = __fadd_rn(totals[4 * i + 3], part.w);
    }
  }
  return true;
}

template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args,
                const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Stage = WgmmaStage<Unit, Shape>;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kScales = Unit::kScalesPerUnit;
  constexpr int kParts = kScales > 2 ? kScales : 2;  // of a unit, decoded and multiplied in turn
  constexpr int kBlocks = 4 / kParts;                // of 32 inputs in a part
  extern __shared__ __align__(1024) uint32_t shared_words[];
  __shared__ WgmmaBarriers barriers;
  __shared__ uint32_t last;
  const uint32_t full = SharedAddress(barriers.full);
  const uint32_t empty = SharedAddress(barriers.empty);
  const uint32_t ring = (SharedAddress(shared_words) + Unit::kTableBytes + kWgmmaAlign - 1) /
                        kWgmmaAlign * kWgmmaAlign;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  LaunchDependents();
  if (threadIdx.x == Shape::kMultiplying) {
    for (int stage = 0; stage < args.stages; ++stage) {
      InitBarrier(full + stage * 8, 1);
      InitBarrier(empty + stage * 8, Shape::kGroups * 4);
    }
    FenceBarrierInit();
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if (warp >= Shape::kGroups * 4) {
    ReleaseRegisters<Shape::kProducerRegisters>();
    if (threadIdx.x == Shape::kMultiplying) ProduceStages<Unit, Shape>(w, args, maps, ring, full, empty);
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y and the partial sums

  const uint32_t codes_at = ring + Stage::kCodesAt + warp * Unit::kCodeBytes + lane * 16;
  const uint32_t scales_at = ring + Stage::kScalesAt + warp * Unit::kScaleBytes +
                             lane / 4 * Unit::kRowScaleBytes;
  const uint32_t zeros_at = ring + Stage::kZerosAt + warp * Unit::kZeroBytes + lane / 4 * 2;
  const int stages = Kept(args.stages);
  const auto give_back = [&](int stage) {
    __syncwarp();
    if (lane == 0) Arrive(empty + stage * 8);
  };
  WgmmaSlot slot;
  float sums[kColumns / 2];
  float totals[kScales == 0 ? 1 : kColumns / 2];
  uint32_t a[2][kBlocks * 2][4];
  const int32_t items = WgmmaItem::Count(args);
  for (int32_t index = blockIdx.x; index < items; index += gridDim.x) {
    const WgmmaItem item(args, w.units, index);
    if constexpr (kScales > 0) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) totals[i] = 0.0f;
    }
    float2 scale = {0.0f, 0.0f};  // of the sums
    int before = -1;              // the stage that they are of
    for (int32_t unit = item.first; unit < item.end; ++unit) {
      const uint32_t offset = slot.stage * Stage::kBytes;
      WaitBarrier(full + slot.stage * 8, slot.parity);
      Unit now;
      now.Load(codes_at + offset, scales_at + offset, zeros_at + offset);
      const uint64_t x = SwizzledOperand(ring + offset);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t(&fragments)[kBlocks * 2][4] = a[part % 2];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
          uint32_t low[4];
          uint32_t high[4];
          now.Decode(w, shared_words, part * kBlocks + i, low, high);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            fragments[2 * i + j][0] = low[2 * j];
            fragments[2 * i + j][1] = high[2 * j];
            fragments[2 * i + j][2] = low[2 * j + 1];
            fragments[2 * i + j][3] = high[2 * j + 1];
          }
        }
        const bool starts = kScales > 0 && part * kScales % kParts == 0;
        if (starts && (part > 0 || before >= 0)) {
          WgmmaWait<0>();
          HoldRegisters(sums);
          HoldRegisters(a[(part + 1) % 2]);
          if (part == 0) give_back(before);
          if constexpr (kScales > 0) AddScaled(totals, sums, scale);
        }
        HoldRegisters(sums);
        HoldRegisters(fragments);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < kBlocks * 2; ++i) {
          const int at = part * kBlocks * 2 + i;  // of 16 inputs
          const bool from_zero = starts ? i == 0 : kScales == 0 && at == 0 && before < 0;
          Wgmma(Pairs{}, sums, fragments[i],
                x + at / 4 * (Stage::kHalfBytes >> 4) + at % 4 * kSwizzledStep, from_zero ? 0 : 1);
        }
        WgmmaCommit();
        WgmmaWait<1>();
        HoldRegisters(a[(part + 1) % 2]);
        if (kScales == 0 && part == 0 && before >= 0) give_back(before);
        if constexpr (kScales > 0) scale = now.Scale(w, part * kScales / kParts);
      }
      before = slot.stage;
      slot.Advance(stages);
    }
    WgmmaWait<0>();
    HoldRegisters(sums);
    if (before >= 0) give_back(before);
    const int32_t n = item.row_tile * Shape::kRows + warp * kUnitRows + lane / 4;
    const int32_t row = item.column_tile * kColumns + lane % 4 * 2;
    const auto finish = [&](float(&result)[kColumns / 2]) {
      if (args.splits > 1 && !CombineSplits<Shape>(args, item, result, &last)) return;
      StoreTotals<Unit, kColumns>(w, args, result, n, row);
    };
    if constexpr (kScales > 0) {
      AddScaled(totals, sums, scale);
      finish(totals);
    } else {
      finish(sums);
    }
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_
