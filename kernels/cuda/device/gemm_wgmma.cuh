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

// kColumns: rows of x of a block. kGroups: multiplying warpgroups. kHeight: times 64 outputs of each
// of them. kScaled: weights are scaled before they are multiplied, and rounded once more for it.
template <int kColumns_, int kGroups_, int kHeight_ = 1, bool kScaled_ = false>
struct WgmmaShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kHeight = kHeight_;
  static constexpr bool kScaled = kScaled_;
  static constexpr int kRows = kGroups * kHeight * kWgmmaRows;
  static constexpr int kTiles = kRows / kUnitRows;
  static constexpr int kMultiplying = kGroups * 128;  // threads
  // The producer is a warpgroup too, so that it can pass its registers on.
  static constexpr int kThreads = kMultiplying + 128;
  static constexpr int kProducing = 128;
  // Few rows of x are put in place by the producers, which saves a launch in front of the kernel.
  static constexpr bool kCopiesRows = kColumns <= 32;
  static constexpr int kProducerRegisters = kCopiesRows ? 56 : 24;
  static constexpr int kRegisters = kGroups == 4 ? (kCopiesRows ? 104 : 112)
                                                 : (kCopiesRows ? 224 : 240);
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

// Rows of x as the producers put them in place: 8 columns of 4 rows by 8 lanes each, so that no two
// lanes of a store meet in a bank. A thread has the same columns of every eighth row.
template <class Shape>
struct WgmmaRows {
  static constexpr int kCount = Shape::kColumns / 8;
  uint4 eights[kCount];

  __device__ static int Row(int thread) { return thread / 64 * 4 + thread % 32 / 8; }
  __device__ static int Half(int thread) { return thread / 32 % 2; }

  // `row` is this thread's first, `column` its first of it.
  __device__ void Load(const WgmmaArgs& args, int32_t row, int32_t column) {
    const auto* from = static_cast<const uint16_t*>(args.x) + row * args.x_stride + column;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row + 8 * i >= args.m) continue;
      eights[i] = __ldg(reinterpret_cast<const uint4*>(from + 8 * i * args.x_stride));
    }
  }
  // Where a thread's first eight goes in a stage; three more parts of it differ in bits 4 and 5.
  __device__ static uint32_t Place(int half_bytes, int thread) {
    const int row = Row(thread);
    return Half(thread) * half_bytes + row * 128 + (((thread % 8 / 4 * 4) ^ row) << 4) +
           thread % 4 * 4;
  }
  // What a row past the last one holds is never stored to y.
  __device__ void Store(uint32_t place) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t at = place + i * 1024;
      StoreShared4Bytes(at, eights[i].x);
      StoreShared4Bytes(at ^ 16, eights[i].y);
      StoreShared4Bytes(at ^ 32, eights[i].z);
      StoreShared4Bytes(at ^ 48, eights[i].w);
    }
  }
};

// Steps through the units of a block's items.
struct WgmmaCursor {
  int32_t index;
  int32_t row_tile;
  int32_t column_tile;
  int32_t unit;
  int32_t end;

  __device__ WgmmaCursor(const WgmmaArgs& args, int32_t units) { Begin(args, units, blockIdx.x); }
  __device__ void Begin(const WgmmaArgs& args, int32_t units, int32_t item_index) {
    index = item_index;
    const WgmmaItem item(args, units, index);
    row_tile = item.row_tile;
    column_tile = item.column_tile;
    unit = item.first;
    end = item.end;
  }
  __device__ bool Valid(const WgmmaArgs& args) const { return index < WgmmaItem::Count(args); }
  __device__ void Next(const WgmmaArgs& args, int32_t units) {
    if (++unit == end) Begin(args, units, index + static_cast<int32_t>(gridDim.x));
  }
};

// The producing warpgroup. The weights of the first stages are on their way before x is there.
template <class Unit, class Shape>
__device__ inline void ProduceStages(const WeightView& w, const WgmmaArgs& args,
                                     const WgmmaMaps& maps, uint32_t ring, uint32_t full,
                                     uint32_t empty) {
  using Stage = WgmmaStage<Unit, Shape>;
  constexpr bool kCopies = Shape::kCopiesRows;
  const int thread = threadIdx.x - Shape::kMultiplying;
  if (!kCopies && thread > 0) return;
  const bool leads = thread == 0;
  const uint64_t once = args.column_tiles == 1 ? EvictFirstPolicy() : EvictNormalPolicy();
  const uint64_t again = EvictNormalPolicy();
  const auto copy_weights = [&](const WgmmaCursor& of, int stage) {
    const uint32_t to = ring + stage * Stage::kBytes;
    const uint32_t barrier = full + stage * 8;
    const int32_t tile = of.row_tile * Shape::kTiles;
    ArriveExpecting(barrier, Stage::kFilled - (kCopies ? Stage::kCodesAt : 0));
    TensorCopy3(to + Stage::kCodesAt, &maps.codes, 0, of.unit, tile, barrier, once);
    if constexpr (Unit::kScaleBytes > 0) {
      constexpr int kScalesOfUnit = Unit::kScalesPerUnit * kUnitRows;
      TensorCopy2(to + Stage::kScalesAt, &maps.scales, of.unit * kScalesOfUnit, tile, barrier,
                  once);
    }
    if constexpr (Unit::kZeroBytes > 0) {
      TensorCopy2(to + Stage::kZerosAt, &maps.zero_points, of.unit * Unit::kZeroBytes, tile,
                  barrier, once);
    }
  };
  const auto copy_x = [&](const WgmmaCursor& of, int stage) {
    const uint32_t to = ring + stage * Stage::kBytes;
    const uint32_t barrier = full + stage * 8;
    const int32_t row = of.column_tile * Shape::kColumns;
    TensorCopy2(to, &maps.x, of.unit * kUnitInputs, row, barrier, again);
    TensorCopy2(to + Stage::kHalfBytes, &maps.x, of.unit * kUnitInputs + 64, row, barrier, again);
  };
  WgmmaCursor cursor(args, w.units);
  const int early = min(args.stages, cursor.end - cursor.unit);
  if (leads) {
    WgmmaCursor ahead = cursor;
    for (int i = 0; i < early; ++i, ahead.Next(args, w.units)) copy_weights(ahead, i);
  }
  WaitForDependencies();
  const uint32_t place = ring + WgmmaRows<Shape>::Place(Stage::kHalfBytes, thread);
  const int row = WgmmaRows<Shape>::Row(thread);
  const int column = WgmmaRows<Shape>::Half(thread) * 64 + thread % 8 * 8;
  WgmmaRows<Shape> rows;
  if constexpr (kCopies) {
    rows.Load(args, cursor.column_tile * Shape::kColumns + row, cursor.unit * kUnitInputs + column);
  }
  WgmmaSlot slot;  // the first phase of `empty` ends with the first use of a stage
  for (int fill = 0; cursor.Valid(args); ++fill) {
    if (fill >= args.stages) WaitBarrier(empty + slot.stage * 8, slot.parity ^ 1);
    if (leads && fill >= early) copy_weights(cursor, slot.stage);
    if constexpr (kCopies) {
      cursor.Next(args, w.units);
      WgmmaRows<Shape> next;
      if (cursor.Valid(args)) {
        next.Load(args, cursor.column_tile * Shape::kColumns + row,
                  cursor.unit * kUnitInputs + column);
      }
      rows.Store(place + slot.stage * Stage::kBytes);
      FenceAsyncProxy();
      Arrive(full + slot.stage * 8);
      rows = next;
    } else {
      copy_x(cursor, slot.stage);
      cursor.Next(args, w.units);
    }
    slot.Advance(args.stages);
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
                                     float (&of)[Shape::kHeight][Shape::kColumns / 2],
                                     uint32_t* last) {
  constexpr int kVectors = Shape::kHeight * Shape::kColumns / 8;
  float* totals = &of[0][0];
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
  for (int i = 0; i < 4 * kVectors; ++i) totals[i] = 0.0f;
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

// Part `part` of a unit, kBlocks x 32 inputs, as operands of wgmmas of 16 inputs each.
template <class Pairs, class Unit, bool kScaled, int kBlocks>
__device__ inline void DecodePart(const WeightView& w, const uint32_t* table, const Unit& unit,
                                  int part, uint32_t (&fragments)[kBlocks * 2][4]) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    const int block = part * kBlocks + i;
    uint32_t low[4];
    uint32_t high[4];
    unit.Decode(w, table, block, low, high);
    if constexpr (kScaled && Unit::kScalesPerUnit > 0) {
      constexpr uint32_t kMinusZero = 0x80008000u;
      const float2 scale = unit.Scale(w, block * Unit::kScalesPerUnit / 4);
      const uint32_t low_scale = Pairs::Splat(scale.x);
      const uint32_t high_scale = Pairs::Splat(scale.y);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        low[j] = Pairs::Fma(low[j], low_scale, kMinusZero);
        high[j] = Pairs::Fma(high[j], high_scale, kMinusZero);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      fragments[2 * i + j][0] = low[2 * j];
      fragments[2 * i + j][1] = high[2 * j];
      fragments[2 * i + j][2] = low[2 * j + 1];
      fragments[2 * i + j][3] = high[2 * j + 1];
    }
  }
}

template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args,
                const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Stage = WgmmaStage<Unit, Shape>;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kHeight = Shape::kHeight;
  constexpr int kScales = Unit::kScalesPerUnit;
  // Sums over the whole K need no totals beside them.
  constexpr bool kTotals = kScales > 0 && !Shape::kScaled;
  constexpr int kParts = kScales > 2 ? 4 : 2;  // of a unit, multiplied in turn
  constexpr int kBlocks = 4 / kParts;          // of 32 inputs in a part
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
      InitBarrier(full + stage * 8, Shape::kCopiesRows ? 1 + Shape::kProducing : 1);
      InitBarrier(empty + stage * 8, Shape::kGroups * 4);
    }
    FenceBarrierInit();
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if (warp >= Shape::kGroups * 4) {
    ReleaseRegisters<Shape::kProducerRegisters>();
    ProduceStages<Unit, Shape>(w, args, maps, ring, full, empty);
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y and the partial sums

  const int first_tile = warp / 4 * 4 * kHeight + warp % 4;  // of 16 outputs; kHeight of them
  const uint32_t codes_at = ring + Stage::kCodesAt + first_tile * Unit::kCodeBytes + lane * 16;
  const uint32_t scales_at = ring + Stage::kScalesAt + first_tile * Unit::kScaleBytes +
                             lane / 4 * Unit::kRowScaleBytes;
  const uint32_t zeros_at = ring + Stage::kZerosAt + first_tile * Unit::kZeroBytes + lane / 4 * 2;
  const int stages = Kept(args.stages);
  const auto give_back = [&](int stage) {
    __syncwarp();
    if (lane == 0) Arrive(empty + stage * 8);
  };
  WgmmaSlot slot;
  float sums[kHeight][kColumns / 2];
  float totals[kTotals ? kHeight : 1][kTotals ? kColumns / 2 : 1];
  uint32_t a[2][kBlocks * 2][4];
  const int32_t items = WgmmaItem::Count(args);
  for (int32_t index = blockIdx.x; index < items; index += gridDim.x) {
    const WgmmaItem item(args, w.units, index);
    if constexpr (kTotals) {
#pragma unroll
      for (int i = 0; i < kHeight * kColumns / 2; ++i) (&totals[0][0])[i] = 0.0f;
    }
    float2 scale[kHeight] = {};  // of the sums
    int before = -1;             // the stage that they are of
    for (int32_t unit = item.first; unit < item.end; ++unit) {
      const uint32_t offset = slot.stage * Stage::kBytes;
      WaitBarrier(full + slot.stage * 8, slot.parity);
      Unit now[kHeight];
#pragma unroll
      for (int h = 0; h < kHeight; ++h) {
        now[h].Load(codes_at + offset + h * 4 * Unit::kCodeBytes,
                    scales_at + offset + h * 4 * Unit::kScaleBytes,
                    zeros_at + offset + h * 4 * Unit::kZeroBytes);
      }
      const uint64_t x = SwizzledOperand(ring + offset);
#pragma unroll
      for (int turn = 0; turn < kParts * kHeight; ++turn) {
        const int part = turn / kHeight;
        const int h = turn % kHeight;
        auto& fragments = a[turn % 2];
        DecodePart<Pairs, Unit, Shape::kScaled, kBlocks>(w, shared_words, now[h], part, fragments);
        const bool starts = kTotals && part * kScales % kParts == 0;
        if (starts && (part > 0 || before >= 0)) {
          WgmmaWait<0>();
          HoldRegisters(sums[h]);
          HoldRegisters(a[(turn + 1) % 2]);
          if (turn == 0) give_back(before);
          if constexpr (kTotals) AddScaled(totals[h], sums[h], scale[h]);
        }
        HoldRegisters(sums[h]);
        HoldRegisters(fragments);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < kBlocks * 2; ++i) {
          const int at = part * kBlocks * 2 + i;  // of 16 inputs
          const bool from_zero = kTotals ? starts && i == 0 : at == 0 && before < 0;
          Wgmma(Pairs{}, sums[h], fragments[i],
                x + at / 4 * (Stage::kHalfBytes >> 4) + at % 4 * kSwizzledStep, from_zero ? 0 : 1);
        }
        WgmmaCommit();
        WgmmaWait<1>();
        HoldRegisters(a[(turn + 1) % 2]);
        if constexpr (kTotals) scale[h] = now[h].Scale(w, part * kScales / kParts);
        if (!kTotals && turn == 0 && before >= 0) give_back(before);
      }
      before = slot.stage;
      slot.Advance(stages);
    }
    WgmmaWait<0>();
    if (before >= 0) give_back(before);
#pragma unroll
    for (int h = 0; h < kHeight; ++h) HoldRegisters(sums[h]);
    const int32_t n = item.row_tile * Shape::kRows + first_tile * kUnitRows + lane / 4;
    const int32_t row = item.column_tile * kColumns + lane % 4 * 2;
    const auto finish = [&](float(&result)[kHeight][kColumns / 2]) {
      if (args.splits > 1 && !CombineSplits<Shape>(args, item, result, &last)) return;
#pragma unroll
      for (int h = 0; h < kHeight; ++h) {
        StoreTotals<Unit, kColumns>(w, args, result[h], n + h * kWgmmaRows, row);
      }
    };
    if constexpr (kTotals) {
#pragma unroll
      for (int h = 0; h < kHeight; ++h) AddScaled(totals[h], sums[h], scale[h]);
      finish(totals);
    } else {
      finish(sums);
    }
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_
