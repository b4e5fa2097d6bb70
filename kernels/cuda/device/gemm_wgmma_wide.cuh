// The wgmma kernel for more than 128 rows of BF16 x: each decoded weight is multiplied by 256 of
// them at once.
//
// Other instructions go beside a wgmma for only a part of its cycles, the fewer columns it has the
// less (tests/bench/wgmma_bench.cu): with 128 the decoder takes a third longer than the tensor
// cores, with 256 it is hidden.
//
// A block takes 128 outputs x 256 rows of x (the last tiles: 128 rows), two warpgroups of 64
// outputs each, whose sums take 128 registers of a thread. A stage of the ring is half a unit (64
// inputs); weights are scaled before they are multiplied (WgmmaShape::kScaled).
//
//   device memory   x, codes, scales, zero points
//        | tensor copies, complete on `full`
//   rings           [stage]: x [256][64], 128-byte swizzle;  [stage]: codes [tile] | scales | zero
//        |          points; both given back on `empty`
//   registers       decode 32 inputs -> 2 wgmmas m64 x 256 x k16, while the next 32 are decoded
//        |
//   y               as in gemm_wgmma.cuh
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_WIDE_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_WIDE_CUH_

#include "kernels/cuda/device/gemm_wgmma.cuh"

namespace nibble::cuda {

using WideShape = WgmmaShape<256, 2, true>;
// Of the tiles of half as many rows of x.
struct WideHalfShape : WgmmaShape<128, 2, true> {
  static constexpr int kStagedColumns = WideShape::kStagedColumns;
};
inline constexpr int kWideBoxRows = WideHalfShape::kColumns;  // of x, of a copy

// Half of an INT4 unit: kScales scales and zero points of its 64 inputs.
template <class Pairs, int kScales, bool kZeroPoints>
struct WideInt4Half {
  static constexpr int kScalesPerHalf = kScales;
  static constexpr int kScaleBytes = kScales * kUnitRows * 2;
  static constexpr int kRowScaleBytes = 4;
  static constexpr int kZeroBytes = kZeroPoints ? kScales * kUnitRows : 0;
  using Words = Int4Words<Pairs>;
  uint4 words;
  uint32_t scales[kScales];
  uint32_t zeros[kScales];

  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t zero_bytes) {
    words = LoadShared16Bytes(codes);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      scales[i] = LoadShared4Bytes(scale_bytes + i * kUnitRows * 2);
      if constexpr (kZeroPoints) zeros[i] = LoadShared2Bytes(zero_bytes + i * kUnitRows);
    }
  }
  __device__ float2 Scale(const WeightView& w, int i) const {
    return WidenHalfScales(w.scale_type == Element::kBF16, scales[i * kScales / 2]);
  }
  __device__ void Decode(const WeightView&, const uint32_t*, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    Int4Zero low_zero = Words::kSymmetric;
    Int4Zero high_zero = Words::kSymmetric;
    if constexpr (kZeroPoints) {
      low_zero = Words::template Zero<0>(zeros[i * kScales / 2]);
      high_zero = Words::template Zero<1>(zeros[i * kScales / 2]);
    }
    Words::Decode(i == 0 ? words.x : words.z, low_zero, low);
    Words::Decode(i == 0 ? words.y : words.w, high_zero, high);
  }
};

// Half of a unit of a table format, which has one scale.
template <class Pairs, int kPitch>
struct WideTableHalf {
  static constexpr int kScalesPerHalf = 1;
  static constexpr int kScaleBytes = kUnitRows * 4;
  static constexpr int kRowScaleBytes = 8;
  static constexpr int kZeroBytes = 0;
  uint4 words;
  float2 scale;

  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t) {
    words = LoadShared16Bytes(codes);
    scale = LoadShared2Floats(scale_bytes);
  }
  __device__ float2 Scale(const WeightView&, int) const { return scale; }
  __device__ void Decode(const WeightView&, const uint32_t* table, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    using Table = TableUnit<Pairs, 1, kPitch>;
    Table::Lookup(table, i == 0 ? words.x : words.z, low);
    Table::Lookup(table, i == 0 ? words.y : words.w, high);
  }
};

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
template <class Half>
struct WideStage {
  static constexpr int kXBytes = WideShape::kColumns * 128;
  static constexpr int kBoxBytes = kWideBoxRows * 128;
  static constexpr int kCodeBytes = 512;  // of a tile
  static constexpr int kScalesAt = WideShape::kTiles * kCodeBytes;
  static constexpr int kZerosAt = kScalesAt + WideShape::kTiles * Half::kScaleBytes;
  static constexpr int kFilled = kZerosAt + WideShape::kTiles * Half::kZeroBytes;
  static constexpr int kWeightBytes = (kFilled + 127) / 128 * 128;
  static constexpr int kBytes = kXBytes + kWeightBytes;
};

// The producing thread. Scales of a whole unit are copied with either half.
template <class Unit>
__device__ inline void ProduceWideStages(const WeightView& w, const WgmmaArgs& args,
                                         const WgmmaMaps& maps, uint32_t x_ring,
                                         uint32_t weight_ring, uint32_t full, uint32_t empty) {
  using Half = typename Unit::Half;
  using Stage = WideStage<Half>;
  using Work = WideWork<Asking::kThread>;
  const bool read_once = args.m <= WideShape::kColumns;
  const uint64_t once = read_once ? EvictFirstPolicy() : UnchangedPolicy();
  const auto copy_weights = [&](const Work& work, int32_t half, int stage) {
    const uint32_t to = weight_ring + stage * Stage::kWeightBytes;
    const uint32_t barrier = full + stage * 8;
    const int32_t tile16 = work.output_tile * WideShape::kTiles;
    ArriveExpecting(barrier, (work.whole ? 2 : 1) * Stage::kBoxBytes + Stage::kFilled);
    TensorCopyUnitsOnce(to, maps.codes, half, tile16, barrier, once);
    const int32_t group = half * Unit::kScalesPerUnit / 2;
    TensorCopyOnce(to + Stage::kScalesAt, maps.scales, group * kUnitRows, tile16, barrier, once);
    if constexpr (Half::kZeroBytes > 0) {
      TensorCopyOnce(to + Stage::kZerosAt, maps.zero_points, group * kUnitRows, tile16, barrier,
                     once);
    }
  };
  const auto copy_x = [&](const Work& work, int32_t half, int stage) {
    const uint32_t to = x_ring + stage * Stage::kXBytes;
    TensorCopy(to, maps.x, half * 64, work.row, full + stage * 8);
    if (!work.whole) return;
    TensorCopy(to + Stage::kBoxBytes, maps.x, half * 64, work.row + kWideBoxRows, full + stage * 8);
  };
  const int32_t halves = w.units * 2;
  Work work;
  if (!work.Next(args)) return;
  const int early = min(args.stages, halves);
  for (int i = 0; i < early; ++i) copy_weights(work, i, i);
  WaitForDependencies();
  for (int i = 0; i < early; ++i) copy_x(work, i, i);
  WgmmaSlot slot;  // the first phase of `empty` ends with the first use of a stage
  int fill = 0;
  do {
    for (int32_t half = 0; half < halves; ++half, ++fill) {
      if (fill >= early) {
        if (fill >= args.stages) WaitBarrier(empty + slot.stage * 8, slot.parity ^ 1);
        copy_weights(work, half, slot.stage);
        copy_x(work, half, slot.stage);
      }
      slot.Advance(args.stages);
    }
  } while (work.Next(args));
}

template <class Pairs, class Unit>
__global__ void __launch_bounds__(WideShape::kThreads, 1)
    WgmmaWideKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args,
                    const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape;
  using Half = typename Unit::Half;
  using Stage = WideStage<Half>;
  extern __shared__ __align__(1024) uint32_t shared_words[];
  __shared__ WgmmaBarriers barriers;
  const uint32_t full = SharedAddress(barriers.full);
  const uint32_t empty = SharedAddress(barriers.empty);
  const uint32_t x_ring = (SharedAddress(shared_words) + Unit::kTableBytes + kWgmmaAlign - 1) /
                          kWgmmaAlign * kWgmmaAlign;
  const uint32_t weight_ring = x_ring + args.stages * Stage::kXBytes;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const uint32_t staging =
      weight_ring + args.stages * Stage::kWeightBytes + warp / 4 * Shape::kStagingBytes;
  LaunchDependents();
  if (threadIdx.x == Shape::kMultiplying) {
    for (int stage = 0; stage < args.stages; ++stage) {
      InitBarrier(full + stage * 8, 1);
      InitBarrier(empty + stage * 8, Shape::kTiles);
    }
    FenceBarrierInit();
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if (warp >= Shape::kGroups * 4) {
    ReleaseRegisters<Shape::kProducerRegisters>();
    if (threadIdx.x == Shape::kMultiplying) {
      ProduceWideStages<Unit>(w, args, maps, x_ring, weight_ring, full, empty);
    }
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y

  const uint32_t codes_at = weight_ring + warp * Stage::kCodeBytes + lane * 16;
  const uint32_t scales_at =
      weight_ring + Stage::kScalesAt + warp * Half::kScaleBytes + lane / 4 * Half::kRowScaleBytes;
  const uint32_t zeros_at = weight_ring + Stage::kZerosAt + warp * Half::kZeroBytes + lane / 4 * 2;
  const int stages = Kept(args.stages);
  const auto give_back = [&](int stage) {
    __syncwarp();
    if (lane == 0) Arrive(empty + stage * 8);
  };
  WgmmaSlot slot;
  uint32_t a[2][2][4];
  WideWork<Asking::kWarp> work;
  const auto multiply = [&](auto shape) {
    using TileShape = decltype(shape);
    float sums[TileShape::kColumns / 2] = {};
    int before = -1;  // the stage whose wgmmas may still be running
#pragma unroll 1
    for (int32_t half = 0; half < w.units * 2; ++half) {
      const uint32_t offset = slot.stage * Stage::kWeightBytes;
      const uint64_t x = SwizzledOperand(OfWarp(x_ring + slot.stage * Stage::kXBytes));
      WaitBarrier(full + slot.stage * 8, slot.parity);
      Half now;
      now.Load(codes_at + offset, scales_at + offset, zeros_at + offset);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t low[4];
        uint32_t high[4];
        now.Decode(w, shared_words, part, low, high);
        ScaleWeights<Pairs>(now.Scale(w, part), low, high);
        ToFragments(low, high, a[part]);
        HoldRegisters(sums);
        HoldRegisters(a[part]);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Wgmma(Pairs{}, sums, a[part][i], x + (part * 2 + i) * kSwizzledStep, 1);
        }
        WgmmaCommit();
        WgmmaWait<1>();
        HoldRegisters(a[1 - part]);
        if (part == 0 && before >= 0) give_back(before);
      }
      before = slot.stage;
      slot.Advance(stages);
    }
    WgmmaWait<0>();
    give_back(before);
    HoldRegisters(sums);
    const int32_t n = work.output_tile * Shape::kRows + warp / 4 * kWgmmaRows;
    StoreTotals<TileShape>(w, args, sums, n, work.row, staging);
  };
  while (work.Next(args)) {
    if (work.whole) {
      multiply(WideShape{});
    } else {
      multiply(WideHalfShape{});
    }
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_WIDE_CUH_
