// The wgmma kernel of 4-bit weights that are scaled before they are multiplied: for more than 128
// rows of BF16 x, for 65 to 128, and for 33 to 64 of table formats.
//
// Other instructions go beside a wgmma for only a part of its cycles, the fewer columns it has the
// less (tests/bench/wgmma_bench.cu): with 256 columns the decoder is hidden, with 128 nearly.
//
// A block takes 128 outputs x 256 rows of x (the last tiles: 128 rows), two warpgroups of 64
// outputs each, whose sums take 128 registers of a thread; or 256 outputs x 128 or 64 rows. A stage
// of the ring is half a unit (64 inputs). The two stages of a unit are a turn of the loop,
// unrolled, so that little is computed beside decoding.
//
//   device memory   x, codes, scales, zero points
//        | tensor copies, complete on `full`
//   rings           [stage]: x [rows][64], 128-byte swizzle;  [stage]: codes [tile] | scales | zero
//        |          points; both given back on `empty`
//   registers       decode 32 inputs -> 2 wgmmas m64 x rows x k16, while the next 32 are decoded
//        |
//   y               as in gemm_wgmma.cuh
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_SCALED_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_SCALED_CUH_

#include "kernels/cuda/device/gemm_wgmma.cuh"
#include "kernels/cuda/device/wgmma_units.cuh"

namespace nibble::cuda {

using WideShape = WgmmaShape<256, 2, true>;
// Of the tiles of half as many rows of x.
struct WideHalfShape : WgmmaShape<128, 2, true> {
  static constexpr int kStagedColumns = WideShape::kStagedColumns;
};

inline constexpr int kScaledTurn = 2;  // stages

// The tiles of a block: every gridDim.x-th of whole_tiles tiles of 256 rows of x, followed by tiles
// of 128: the halves of halved_tiles more, then those of the rows past the last 256, if there are
// any. Halves let all blocks end at about the same time.
template <Asking kAsking>
struct WideWork {
  int32_t output_tile = 0;
  int32_t row = 0;
  bool whole = false;

  __device__ WideWork() : next_(static_cast<int32_t>(blockIdx.x)) {}
  __device__ bool Next(const WgmmaArgs& args) {
    for (; next_ < args.tiles; next_ += static_cast<int32_t>(gridDim.x)) {
      const int32_t half = next_ - args.whole_tiles;
      const int32_t of_halved = half - 2 * args.halved_tiles;
      whole = half < 0;
      if (of_halved >= 0) {
        output_tile = of_halved;  // the rows past the last 256
        row = args.column_tiles * WideShape::kColumns;
      } else {
        const int32_t tile = whole ? next_ : args.whole_tiles + half / 2;
        output_tile = tile / args.column_tiles;
        row = tile % args.column_tiles * WideShape::kColumns;
        if (!whole) row += half % 2 * WideHalfShape::kColumns;
      }
      output_tile = OfAsking<kAsking>(output_tile);
      if (row < args.m) {
        next_ += static_cast<int32_t>(gridDim.x);
        return true;
      }
    }
    return false;
  }

 private:
  int32_t next_;
};

// Where the parts of a stage lie, in bytes: x in one ring, the weights in another behind it.
template <class Half, class Shape>
struct ScaledStage {
  // Of x, of a copy.
  static constexpr int kBoxRows = Shape::kColumns > 128 ? WideHalfShape::kColumns : Shape::kColumns;
  static constexpr int kBoxBytes = kBoxRows * 128;
  static constexpr int kXBytes = Shape::kColumns * 128;
  static constexpr int kCodeBytes = Half::kCodeBytes;  // of a tile
  static constexpr int kScalesAt = Shape::kTiles * kCodeBytes;
  static constexpr int kZerosAt = kScalesAt + Shape::kTiles * Half::kScaleBytes;
  static constexpr int kFilled = kZerosAt + Shape::kTiles * Half::kZeroBytes;
  static constexpr int kWeightBytes = (kFilled + 127) / 128 * 128;
  static constexpr int kBytes = kXBytes + kWeightBytes;
};

// What a block multiplies, in halves of units: of fewer than 256 rows as WgmmaWork.
template <class Shape, Asking kAsking>
struct ScaledWork {
  static constexpr bool kWide = false;
  static constexpr bool whole = true;
  int32_t output_tile = 0;
  int32_t row = 0;
  int32_t first = 0;
  int32_t end = 0;

  __device__ ScaledWork(const WgmmaArgs& args, int32_t units) : work_(args, units) {}
  __device__ bool Next(const WgmmaArgs& args, int32_t units) {
    if (!work_.Next(args, units)) return false;
    output_tile = work_.tile / args.column_tiles;
    row = work_.tile % args.column_tiles * Shape::kColumns;
    first = work_.first * 2;
    end = work_.end * 2;
    return true;
  }

 private:
  WgmmaWork<kAsking> work_;
};

// Of 256 as WideWork.
template <Asking kAsking>
struct ScaledWork<WideShape, kAsking> : WideWork<kAsking> {
  static constexpr bool kWide = true;
  static constexpr int32_t first = 0;
  int32_t end;

  __device__ ScaledWork(const WgmmaArgs&, int32_t units) : end(units * 2) {}
  __device__ bool Next(const WgmmaArgs& args, int32_t) { return WideWork<kAsking>::Next(args); }
};

// The producing thread. Scales of a whole unit are copied with either half.
template <class Unit, class Shape, int kStages>
__device__ inline void ProduceScaledStages(const WeightView& w, const WgmmaArgs& args,
                                           const WgmmaMaps& maps, uint32_t x_ring,
                                           uint32_t weight_ring, uint32_t full, uint32_t empty) {
  using Half = typename Unit::Half;
  using Stage = ScaledStage<Half, Shape>;
  constexpr bool kWide = ScaledWork<Shape, Asking::kThread>::kWide;
  const bool read_once = kWide ? args.m <= Shape::kColumns : args.column_tiles == 1;
  const uint64_t once = read_once ? EvictFirstPolicy() : UnchangedPolicy();
  const auto copy_weights = [&](const ScaledWork<Shape, Asking::kThread>& work, int32_t half,
                                int stage) {
    const uint32_t to = weight_ring + stage * Stage::kWeightBytes;
    const uint32_t barrier = full + stage * 8;
    const int32_t tile16 = work.output_tile * Shape::kTiles;
    ArriveExpecting(barrier, (kWide && work.whole ? 2 : 1) * Stage::kBoxBytes + Stage::kFilled);
    TensorCopyUnitsOnce(to, maps.codes, half, tile16, barrier, once);
    const int32_t group = half * Unit::kScalesPerUnit / 2;
    TensorCopyOnce(to + Stage::kScalesAt, maps.scales, group * kUnitRows, tile16, barrier, once);
    if constexpr (Half::kZeroBytes > 0) {
      TensorCopyOnce(to + Stage::kZerosAt, maps.zero_points, group * kUnitRows, tile16, barrier,
                     once);
    }
  };
  const auto copy_x = [&](const ScaledWork<Shape, Asking::kThread>& work, int32_t half, int stage) {
    const uint32_t to = x_ring + stage * Stage::kXBytes;
    TensorCopy(to, maps.x, half * 64, work.row, full + stage * 8);
    if (!kWide || !work.whole) return;
    TensorCopy(to + Stage::kBoxBytes, maps.x, half * 64, work.row + Stage::kBoxRows,
               full + stage * 8);
  };
  ScaledWork<Shape, Asking::kThread> work(args, w.units);
  if (!work.Next(args, w.units)) return;
  const int early = min(kStages, work.end - work.first);
  for (int i = 0; i < early; ++i) copy_weights(work, work.first + i, i);
  WaitForDependencies();
  for (int i = 0; i < early; ++i) copy_x(work, work.first + i, i);
  WgmmaSlot slot;  // the first phase of `empty` ends with the first use of a stage
  int fill = 0;
  do {
    for (int32_t half = work.first; half < work.end; ++half, ++fill) {
      if (fill >= early) {
        if (fill >= kStages) WaitBarrier(empty + slot.stage * 8, slot.parity ^ 1);
        copy_weights(work, half, slot.stage);
        copy_x(work, half, slot.stage);
      }
      slot.Advance(kStages);
    }
  } while (work.Next(args, w.units));
}

template <class Unit, class Shape, int kStages>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaScaledKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args,
                      const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Half = typename Unit::Half;
  using Stage = ScaledStage<Half, Shape>;
  static_assert(kStages % kScaledTurn == 0 && kStages <= kWgmmaMaxStages);
  extern __shared__ __align__(1024) uint32_t shared_words[];
  __shared__ WgmmaBarriers barriers;
  const uint32_t full = Kept(SharedAddress(barriers.full));
  const uint32_t table = SharedAddress(shared_words);
  const uint32_t x_ring = (table + Unit::kTableBytes + kWgmmaAlign - 1) / kWgmmaAlign * kWgmmaAlign;
  const uint32_t weight_ring = x_ring + kStages * Stage::kXBytes;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const uint32_t staging =
      weight_ring + kStages * Stage::kWeightBytes + warp / 4 * Shape::kStagingBytes;
  LaunchDependents();
  if (threadIdx.x == Shape::kMultiplying) {
    InitRing(full, full + kWgmmaEmptyAt, kStages, Shape::kTiles);
    FenceBarrierInit();
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if (warp >= Shape::kGroups * 4) {
    ReleaseRegisters<Shape::kProducerRegisters>();
    if (threadIdx.x == Shape::kMultiplying) {
      ProduceScaledStages<Unit, Shape, kStages>(w, args, maps, x_ring, weight_ring, full,
                                                full + kWgmmaEmptyAt);
    }
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y

  const uint32_t codes_at = Kept(weight_ring + warp * Stage::kCodeBytes + lane * 16);
  const uint32_t scales_at = Kept(weight_ring + Stage::kScalesAt + warp * Half::kScaleBytes +
                                  lane / 4 * Half::kRowScaleBytes);
  const uint32_t zeros_at =
      Kept(weight_ring + Stage::kZerosAt + warp * Half::kZeroBytes + lane / 4 * 2);
  const uint32_t x_at = OfWarp(OperandStart(x_ring));
  const bool bf16_scales = w.scale_type == Element::kBF16;
  const auto give_back = [](uint32_t barrier) { ArriveByWarp(barrier + kWgmmaEmptyAt); };
  uint32_t parity = 0;
  uint32_t first_stage = 0;  // of this turn
  uint32_t a[2][2][4];
  ScaledWork<Shape, Asking::kWarp> work(args, w.units);
  const auto multiply = [&](auto shape) {
    using TileShape = decltype(shape);
    float sums[TileShape::kColumns / 2] = {};
    uint32_t before = 0;  // the barrier of the stage whose wgmmas may still be running
#pragma unroll 1
    for (int32_t left = work.end - work.first; left > 0; left -= kScaledTurn) {
      const uint32_t turn = first_stage * Stage::kWeightBytes;
      const uint32_t barriers_at = full + first_stage * 8;
      const uint32_t x_start = OfWarp(x_at + first_stage * (Stage::kXBytes >> 4));
      Half now;
#pragma unroll
      for (int stage = 0; stage < kScaledTurn; ++stage) {
        const uint32_t offset = turn + stage * Stage::kWeightBytes;
        const uint64_t x = OperandAt(x_start + stage * (Stage::kXBytes >> 4));
        AwaitPhase(barriers_at + stage * 8, parity);
        now.Load(codes_at + offset);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          if (part == 0 ? stage == 0 || Unit::kScalesPerUnit > 1 : Half::kGroups > 1) {
            now.LoadGroup(bf16_scales, scales_at + offset, zeros_at + offset, part);
          }
          uint32_t low[4];
          uint32_t high[4];
          now.Decode(table, part, low, high);
          ToFragments(low, high, a[part]);
          HoldRegisters(sums);
          HoldRegisters(a[part]);
          WgmmaFence();
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            Wgmma(BF16Pairs{}, sums, a[part][i], x + (part * 2 + i) * kSwizzledStep, 1);
          }
          WgmmaCommit();
          WgmmaWait<1>();
          HoldRegisters(a[1 - part]);
          if (part == 0 && stage > 0) give_back(barriers_at + (stage - 1) * 8);
          if (part == 0 && stage == 0 && before != 0) give_back(before);
        }
      }
      before = barriers_at + (kScaledTurn - 1) * 8;
      first_stage += kScaledTurn;
      if (first_stage == kStages) {
        first_stage = 0;
        parity ^= 1;
      }
    }
    WgmmaWait<0>();
    give_back(before);
    HoldRegisters(sums);
    if constexpr (!ScaledWork<Shape, Asking::kWarp>::kWide) {
      if (work.end - work.first < w.units * 2) {
        StoreShare<Shape>(args, work.first == 0, sums);
        return;
      }
    }
    const int32_t n = work.output_tile * Shape::kRows + warp / 4 * kWgmmaRows;
    StoreTotals<TileShape>(w, args, sums, n, work.row, staging);
  };
  while (work.Next(args, w.units)) {
    if constexpr (ScaledWork<Shape, Asking::kWarp>::kWide) {
      if (!work.whole) {
        multiply(WideHalfShape{});
        continue;
      }
    }
    multiply(Shape{});
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_SCALED_CUH_
