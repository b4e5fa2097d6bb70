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
//   y               + bias; or, of a tile that blocks share, totals to memory: the block that
//                   comes last to the tile adds them in the order of K.
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
  static constexpr bool kCopiesRows = kColumns <= 64;
  static constexpr int kRowsInFlight = 3;  // stages
  static constexpr int kProducerRegisters = kGroups == 4 ? 32 : 40;
  static constexpr int kRegisters = kGroups == 4 ? 112 : 232;
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

// What a block does: tiles of its own, whole, and before them an equal share of the units of the
// tiles that are left over, which blocks share.
struct WgmmaWork {
  int32_t tile = 0;
  int32_t first = 0;  // units of K of the tile
  int32_t end = 0;

  __device__ WgmmaWork(const WgmmaArgs& args, int32_t units)
      : shared_at_(ShareBegin(args, units, blockIdx.x)),
        shared_end_(ShareBegin(args, units, blockIdx.x + 1)),
        own_(static_cast<int32_t>(blockIdx.x)) {}
  // Where the share of block `block` begins, in units of the shared tiles.
  __device__ static int32_t ShareBegin(const WgmmaArgs& args, int32_t units, int64_t block) {
    const int64_t all = static_cast<int64_t>(args.tiles - args.whole_tiles) * units;
    return static_cast<int32_t>(all * block / gridDim.x);
  }
  // The block whose share holds this unit.
  __device__ static int32_t BlockOf(const WgmmaArgs& args, int32_t units, int64_t unit) {
    const int64_t all = static_cast<int64_t>(args.tiles - args.whole_tiles) * units;
    return static_cast<int32_t>(((unit + 1) * gridDim.x - 1) / all);
  }
  __device__ bool Next(const WgmmaArgs& args, int32_t units) {
    if (shared_at_ < shared_end_) {
      const int32_t of_tile = shared_at_ / units * units;
      tile = args.whole_tiles + shared_at_ / units;
      first = shared_at_ - of_tile;
      end = min(units, shared_end_ - of_tile);
      shared_at_ = of_tile + end;
      return true;
    }
    if (own_ >= args.whole_tiles) return false;
    tile = own_;
    first = 0;
    end = units;
    own_ += static_cast<int32_t>(gridDim.x);
    return true;
  }

 private:
  int32_t shared_at_;
  int32_t shared_end_;
  int32_t own_;
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

// Rows of x put in place by the producing warpgroup, each warp 128 contiguous bytes at a time: a
// copy is 2 columns. Arrangement and swizzle spread a warp over all banks.
template <class Shape>
__device__ inline void CopyRows(const WgmmaArgs& args, int32_t first_row, int32_t unit,
                                uint32_t stage, int half_bytes, int thread) {
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int chunk = lane / 16 * 4 + lane % 4;  // of 16 bytes in the arranged row
  const int half = warp % 2;
  const auto* from = static_cast<const uint32_t*>(args.x) +
                     (unit * kUnitInputs + half * 64) / 2 + lane;
#pragma unroll 4
  for (int row = warp / 2; row < Shape::kColumns; row += 2) {
    if (first_row + row >= args.m) break;  // what such a row holds is never stored to y
    CopyShared4Bytes(stage + half * half_bytes + row * 128 + ((chunk ^ (row & 7)) << 4) +
                         lane / 4 % 4 * 4,
                     from + (first_row + row) * (args.x_stride / 2));
  }
}

// The producing warpgroup. The weights of the first stages are on their way before x is there.
template <class Unit, class Shape>
__device__ inline void ProduceStages(const WeightView& w, const WgmmaArgs& args,
                                     const WgmmaMaps& maps, uint32_t ring, uint32_t full,
                                     uint32_t empty) {
  using Stage = WgmmaStage<Unit, Shape>;
  constexpr bool kCopies = Shape::kCopiesRows;
  constexpr int kInFlight = Shape::kRowsInFlight;
  const int thread = threadIdx.x - Shape::kMultiplying;
  if (!kCopies && thread > 0) return;
  const bool leads = thread == 0;
  const uint64_t once = args.column_tiles == 1 ? EvictFirstPolicy() : EvictNormalPolicy();
  const uint64_t again = EvictNormalPolicy();
  const auto copy_weights = [&](int32_t tile, int32_t unit, int stage) {
    const uint32_t to = ring + stage * Stage::kBytes;
    const uint32_t barrier = full + stage * 8;
    const int32_t tile16 = tile / args.column_tiles * Shape::kTiles;
    ArriveExpecting(barrier, Stage::kFilled - (kCopies ? Stage::kCodesAt : 0));
    TensorCopy3(to + Stage::kCodesAt, &maps.codes, 0, unit, tile16, barrier, once);
    constexpr int kScalesOfUnit = Unit::kScalesPerUnit * kUnitRows;
    TensorCopy2(to + Stage::kScalesAt, &maps.scales, unit * kScalesOfUnit, tile16, barrier, once);
    if constexpr (Unit::kZeroBytes > 0) {
      TensorCopy2(to + Stage::kZerosAt, &maps.zero_points, unit * Unit::kZeroBytes, tile16,
                  barrier, once);
    }
  };
  const auto copy_x = [&](int32_t tile, int32_t unit, int stage) {
    const uint32_t to = ring + stage * Stage::kBytes;
    const int32_t row = tile % args.column_tiles * Shape::kColumns;
    if constexpr (kCopies) {
      CopyRows<Shape>(args, row, unit, to, Stage::kHalfBytes, thread);
    } else {
      const uint32_t barrier = full + stage * 8;
      TensorCopy2(to, &maps.x, unit * kUnitInputs, row, barrier, again);
      TensorCopy2(to + Stage::kHalfBytes, &maps.x, unit * kUnitInputs + 64, row, barrier, again);
    }
  };
  WgmmaWork work(args, w.units);
  if (!work.Next(args, w.units)) return;
  const int early = min(args.stages, work.end - work.first);
  if (leads) {
    for (int i = 0; i < early; ++i) copy_weights(work.tile, work.first + i, i);
  }
  WaitForDependencies();
  WgmmaSlot slot;  // the first phase of `empty` ends with the first use of a stage
  int fill = 0;
  int copied = 0;  // stage whose rows have been copied, kInFlight behind
  const auto hand_over = [&] {
    FenceAsyncProxy();
    Arrive(full + copied * 8);
    copied = copied + 1 == args.stages ? 0 : copied + 1;
  };
  do {
    for (int32_t unit = work.first; unit < work.end; ++unit, ++fill) {
      if (fill >= args.stages) WaitBarrier(empty + slot.stage * 8, slot.parity ^ 1);
      if (leads && fill >= early) copy_weights(work.tile, unit, slot.stage);
      copy_x(work.tile, unit, slot.stage);
      slot.Advance(args.stages);
      if constexpr (kCopies) {
        CommitCopies();
        WaitCopies<kInFlight>();
        if (fill >= kInFlight) hand_over();
      }
    }
  } while (work.Next(args, w.units));
  if constexpr (kCopies) {
    WaitCopies<0>();
    for (int i = min(fill, kInFlight); i > 0; --i) hand_over();
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
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const int32_t of_x = row + i / 2 * 8 + i % 2;
      if (of_x >= args.m) continue;
      float sum = __fmul_rn(totals[i / 2 * 4 + i % 2 + 2 * high], Unit::kUnscale);
      if (w.bias != nullptr) sum = __fadd_rn(sum, bias);
      StoreElement(args.y, args.y_type, of_x * args.y_stride + output, sum);
    }
  }
}

// Leaves a block's totals of its units of a shared tile in memory. True, with the sum over all the
// blocks in `of`, in the one that comes last. A block begins at most one tile and ends at most one:
// it has two places.
template <class Shape>
__device__ inline bool CombineShares(const WgmmaArgs& args, const WgmmaWork& work, int32_t units,
                                     float (&of)[Shape::kHeight][Shape::kColumns / 2],
                                     uint32_t* last) {
  constexpr int kVectors = Shape::kHeight * Shape::kColumns / 8;
  float* totals = &of[0][0];
  const auto at = [&](int32_t block, bool begins, int vector) {
    const int64_t index = (static_cast<int64_t>(block) * 2 + (begins ? 1 : 0)) * kVectors + vector;
    return reinterpret_cast<float4*>(args.partials) + index * Shape::kMultiplying + threadIdx.x;
  };
  const auto barrier = [] {
    asm volatile("bar.sync 1, %0;" ::"n"(Shape::kMultiplying) : "memory");
  };
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    __stcg(at(blockIdx.x, work.first == 0, i),
           make_float4(totals[4 * i], totals[4 * i + 1], totals[4 * i + 2], totals[4 * i + 3]));
  }
  const int32_t shared_tile = work.tile - args.whole_tiles;
  const int64_t first_unit = static_cast<int64_t>(shared_tile) * units;
  const int32_t first_block = WgmmaWork::BlockOf(args, units, first_unit);
  const int32_t last_block = WgmmaWork::BlockOf(args, units, first_unit + units - 1);
  __threadfence();
  barrier();
  if (threadIdx.x == 0) {
    const auto blocks = static_cast<uint32_t>(last_block - first_block + 1);
    *last = atomicAdd(args.done + shared_tile, 1u) + 1 == blocks ? 1 : 0;
    if (*last != 0) args.done[shared_tile] = 0;
  }
  barrier();
  if (*last == 0) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < 4 * kVectors; ++i) totals[i] = 0.0f;
  for (int32_t block = first_block; block <= last_block; ++block) {
    float4 parts[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) parts[i] = __ldcg(at(block, block == first_block, i));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      totals[4 * i] = __fadd_rn(totals[4 * i], parts[i].x);
      totals[4 * i + 1] = __fadd_rn(totals[4 * i + 1], parts[i].y);
      totals[4 * i + 2] = __fadd_rn(totals[4 * i + 2], parts[i].z);
      totals[4 * i + 3] = __fadd_rn(totals[4 * i + 3], parts[i].w);
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
    if constexpr (kScaled) {
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
  constexpr bool kTotals = !Shape::kScaled;
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
  WgmmaWork work(args, w.units);
  while (work.Next(args, w.units)) {
    if constexpr (kTotals) {
#pragma unroll
      for (int i = 0; i < kHeight * kColumns / 2; ++i) (&totals[0][0])[i] = 0.0f;
    }
    float2 scale[kHeight] = {};  // of the sums
    int before = -1;             // the stage that they are of
    for (int32_t unit = work.first; unit < work.end; ++unit) {
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
        if (kHeight > 1) {
          WgmmaWait<0>();
          HoldRegisters(a[(turn + 1) % 2]);
          HoldRegisters(sums[0]);
          HoldRegisters(sums[kHeight - 1]);
          if (!kTotals && turn == 0 && before >= 0) give_back(before);
        }
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
        if (kHeight == 1) {
          WgmmaWait<1>();
          HoldRegisters(a[(turn + 1) % 2]);
        }
        if constexpr (kTotals) scale[h] = now[h].Scale(w, part * kScales / kParts);
        if (!kTotals && kHeight == 1 && turn == 0 && before >= 0) give_back(before);
      }
      before = slot.stage;
      slot.Advance(stages);
    }
    WgmmaWait<0>();
    if (before >= 0) give_back(before);
#pragma unroll
    for (int h = 0; h < kHeight; ++h) HoldRegisters(sums[h]);
    const int32_t n =
        work.tile / args.column_tiles * Shape::kRows + first_tile * kUnitRows + lane / 4;
    const int32_t row = work.tile % args.column_tiles * kColumns + lane % 4 * 2;
    const auto finish = [&](float(&result)[kHeight][kColumns / 2]) {
      const bool whole = work.end - work.first == w.units;
      if (!whole && !CombineShares<Shape>(args, work, w.units, result, &last)) return;
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
