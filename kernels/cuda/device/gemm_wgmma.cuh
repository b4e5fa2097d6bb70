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
//   ring            [stage]: x [2][kColumns][64], 128-byte swizzle | codes [tile] | scales | zero
//        |          points; given back on `empty`
//   registers       decode -> wgmma m64 x kColumns x k16 -> sums * scales -> totals
//        |
//   y               + bias; or, of a tile that blocks share, to memory: AddSharesKernel adds the
//                   shares in the order of K.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/output_factors.cuh"
#include "kernels/cuda/device/ring_units.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/wgmma_args.cuh"

namespace nibble::cuda {

inline constexpr int kWgmmaMaxStages = 12;
inline constexpr int kWgmmaRows = 64;  // of a warpgroup
inline constexpr int kWgmmaAlign = 1024;

// kColumns: rows of x of a block. kGroups: multiplying warpgroups. kScaled: sums need no scales, as
// weights have none, or have been multiplied by them and rounded once more.
template <int kColumns_, int kGroups_, bool kScaled_ = false>
struct WgmmaShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kGroups = kGroups_;
  static constexpr bool kScaled = kScaled_;
  static constexpr int kRows = kGroups * kWgmmaRows;
  static constexpr int kTiles = kRows / kUnitRows;
  static constexpr int kMultiplying = kGroups * 128;  // threads
  static constexpr int kVectors = kColumns / 8;       // of 4 sums, of a thread
  // Fragments of 32 inputs instead of 64 leave registers for the sums.
  static constexpr bool kSmallParts = kGroups == 4 && (kScaled || kColumns > 32);
  // The producer is a warpgroup too, so that it can pass its registers on.
  static constexpr int kThreads = kMultiplying + 128;
  static constexpr int kProducerRegisters = kGroups == 4 ? 32 : 40;
  static constexpr int kRegisters = kGroups == 4 ? 112 : 232;
  // Of y, between registers and memory: rows of x at a time, bytes from one to the next (lanes of a
  // store meet in no bank), and bytes of a warpgroup.
  static constexpr int kStagedColumns = kColumns > 128 ? 16 : kColumns >= 32 ? 32 : 0;
  static constexpr int kStagedPitch = kWgmmaRows * 2 + 16;
  static constexpr int kStagingBytes = kStagedColumns * kStagedPitch;
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

// `value`, which all lanes of the warp have, as something the compiler knows they have: it then
// keeps what follows from it, operands of wgmma above all, in uniform registers.
__device__ inline int32_t OfWarp(int32_t value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

// Who asks for work: a whole warp, or one thread of it, which must not wait for the others.
enum class Asking { kWarp, kThread };

template <Asking kAsking>
__device__ inline int32_t OfAsking(int32_t value) {
  if constexpr (kAsking == Asking::kWarp) return OfWarp(value);
  return value;
}

// What a block does: tiles of its own, whole, and before them an equal share of the units of the
// tiles that are left over, which blocks share.
template <Asking kAsking>
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
    return OfAsking<kAsking>(static_cast<int32_t>(all * block / args.blocks));
  }
  // The block whose share holds this unit.
  __device__ static int32_t BlockOf(const WgmmaArgs& args, int32_t units, int64_t unit) {
    const int64_t all = static_cast<int64_t>(args.tiles - args.whole_tiles) * units;
    return static_cast<int32_t>(((unit + 1) * args.blocks - 1) / all);
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
  // By fewer steps than there are stages.
  __device__ void AdvanceBy(int steps, int stages) {
    stage += steps;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
  }
};

// One unit of the weight's rows from those of tile16 on to a stage, which will expect x too.
template <class Unit, class Shape>
__device__ inline void CopyWeights(const WgmmaMaps& maps, int32_t tile16, int32_t unit,
                                   uint32_t stage, uint32_t barrier, uint64_t policy) {
  using Stage = WgmmaStage<Unit, Shape>;
  ArriveExpecting(barrier, Stage::kFilled);
  if constexpr (Unit::kBoxed) {
    TensorCopyUnitsOnce(stage + Stage::kCodesAt, maps.codes, tile16 * kUnitRows, unit, barrier,
                        policy);
  } else {
    TensorCopyUnitsOnce(stage + Stage::kCodesAt, maps.codes, unit, tile16, barrier, policy);
  }
  if constexpr (Unit::kScaleBytes > 0) {
    constexpr int kScalesOfUnit = Unit::kScalesPerUnit * kUnitRows;
    TensorCopyOnce(stage + Stage::kScalesAt, maps.scales, unit * kScalesOfUnit, tile16, barrier,
                   policy);
  }
  if constexpr (Unit::kZeroBytes > 0) {
    TensorCopyOnce(stage + Stage::kZerosAt, maps.zero_points, unit * Unit::kZeroBytes, tile16,
                   barrier, policy);
  }
}

// The producing thread. The weights of the first stages are on their way before x is there.
template <class Unit, class Shape>
__device__ inline void ProduceStages(const WeightView& w, const WgmmaArgs& args,
                                     const WgmmaMaps& maps, uint32_t ring, uint32_t full,
                                     uint32_t empty) {
  using Stage = WgmmaStage<Unit, Shape>;
  const uint64_t once = args.column_tiles == 1 ? EvictFirstPolicy() : UnchangedPolicy();
  const auto copy_weights = [&](int32_t tile, int32_t unit, int stage) {
    CopyWeights<Unit, Shape>(maps, tile / args.column_tiles * Shape::kTiles, unit,
                             ring + stage * Stage::kBytes, full + stage * 8, once);
  };
  const auto copy_x = [&](int32_t tile, int32_t unit, int stage) {
    const uint32_t to = ring + stage * Stage::kBytes;
    const uint32_t barrier = full + stage * 8;
    const int32_t row = tile % args.column_tiles * Shape::kColumns;
    TensorCopy(to, maps.x, unit * kUnitInputs, row, barrier);
    TensorCopy(to + Stage::kHalfBytes, maps.x, unit * kUnitInputs + 64, row, barrier);
  };
  WgmmaWork<Asking::kThread> work(args, w.units);
  if (!work.Next(args, w.units)) return;
  const int early = min(args.stages, work.end - work.first);
  for (int i = 0; i < early; ++i) copy_weights(work.tile, work.first + i, i);
  WaitForDependencies();
  for (int i = 0; i < early; ++i) copy_x(work.tile, work.first + i, i);
  WgmmaSlot slot;  // the first phase of `empty` ends with the first use of a stage
  int fill = 0;
  do {
    for (int32_t unit = work.first; unit < work.end; ++unit, ++fill) {
      if (fill >= early) {
        if (fill >= args.stages) WaitBarrier(empty + slot.stage * 8, slot.parity ^ 1);
        copy_weights(work.tile, unit, slot.stage);
        copy_x(work.tile, unit, slot.stage);
      }
      slot.Advance(args.stages);
    }
  } while (work.Next(args, w.units));
}

template <int kSize>
__device__ inline void AddScaled(float (&totals)[kSize], const float (&sums)[kSize], float2 scale) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    totals[i] = __fmaf_rn(sums[i], i % 4 < 2 ? scale.x : scale.y, totals[i]);
  }
}

// Totals of a warpgroup's 64 outputs to y, of type Out, element by element.
template <class Out, int kColumns>
__device__ inline void StoreElements(const WeightView& w, const WgmmaArgs& args,
                                     const float (&totals)[kColumns / 2], int32_t n, int32_t row) {
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int32_t output = n + 8 * high;
    if (output >= w.n) continue;
    const OutputFactors factors(w, args, output);
    Out* to = static_cast<Out*>(args.y) + row * args.y_stride + output;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      const int of_x = i / 2 * 8 + i % 2;
      const float sum = factors.Finish(totals[i / 2 * 4 + i % 2 + 2 * high]);
      if (row + of_x < args.m) to[of_x * args.y_stride] = FromFloat<Out>(sum);
    }
  }
}

// The same through shared memory, 16 bytes a store, for 16-bit Out where every row of y and its
// length are multiples of 16 bytes. `staging` is this warpgroup's own.
template <class Out, class Shape>
__device__ inline void StoreRows(const WeightView& w, const WgmmaArgs& args,
                                 const float (&totals)[Shape::kColumns / 2], int32_t n, int32_t row,
                                 uint32_t staging) {
  constexpr int kStep = Shape::kStagedColumns;
  constexpr int kPitch = Shape::kStagedPitch;
  const int lane = threadIdx.x % 32;
  const int thread = threadIdx.x % 128;
  const auto barrier = [] {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + static_cast<int>(threadIdx.x) / 128) : "memory");
  };
  const int32_t of_group = thread / 32 * kUnitRows + lane / 4;
  const OutputFactors low(w, args, n + of_group);
  const OutputFactors high(w, args, n + of_group + 8);
  const uint32_t to = staging + lane % 4 * 2 * kPitch + of_group * 2;
#pragma unroll
  for (int first = 0; first < Shape::kColumns; first += kStep) {
#pragma unroll
    for (int i = 0; i < kStep / 2; ++i) {
      const int is_high = i / 2 % 2;
      const Out rounded = FromFloat<Out>((is_high == 0 ? low : high).Finish(totals[first / 2 + i]));
      StoreShared2Bytes(to + (i / 4 * 8 + i % 2) * kPitch + is_high * 16,
                        *reinterpret_cast<const uint16_t*>(&rounded));
    }
    barrier();
#pragma unroll
    for (int i = 0; i < kStep * 8 / 128; ++i) {
      const int of_x = thread / 8 + i * 16;
      const int eight = thread % 8 * 8;
      const uint4 values = LoadShared16Bytes(staging + of_x * kPitch + eight * 2);
      if (row + first + of_x < args.m && n + eight < w.n) {
        Out* y = static_cast<Out*>(args.y) + (row + first + of_x) * args.y_stride + n + eight;
        *reinterpret_cast<uint4*>(y) = values;
      }
    }
    barrier();
  }
}

// n: the warpgroup's first output. row: the tile's first row of x.
template <class Shape>
__device__ inline void StoreTotals(const WeightView& w, const WgmmaArgs& args,
                                   const float (&totals)[Shape::kColumns / 2], int32_t n,
                                   int32_t row, uint32_t staging) {
  const int lane = threadIdx.x % 32;
  const int32_t own_n = n + threadIdx.x % 128 / 32 * kUnitRows + lane / 4;
  const int32_t own_row = row + lane % 4 * 2;
  constexpr bool kStaged = Shape::kStagedColumns > 0;
  const bool bf16 = args.y_type == Element::kBF16;
  if (args.y_type == Element::kF32) {
    StoreElements<float, Shape::kColumns>(w, args, totals, own_n, own_row);
  } else if (kStaged && args.vector_y) {
    if constexpr (kStaged) {
      if (bf16) StoreRows<__nv_bfloat16, Shape>(w, args, totals, n, row, staging);
      if (!bf16) StoreRows<__half, Shape>(w, args, totals, n, row, staging);
    }
  } else if (bf16) {
    StoreElements<__nv_bfloat16, Shape::kColumns>(w, args, totals, own_n, own_row);
  } else {
    StoreElements<__half, Shape::kColumns>(w, args, totals, own_n, own_row);
  }
}

// Where a block's sums of its share of a tile lie, 4 of a thread's at a time. It has two places:
// for the tile that it begins and for another.
template <class Shape>
__device__ inline float4* ShareOf(const WgmmaArgs& args, int32_t block, bool begins, int vector,
                                  int thread = static_cast<int>(threadIdx.x)) {
  const int64_t index =
      (static_cast<int64_t>(block) * 2 + (begins ? 1 : 0)) * Shape::kVectors + vector;
  return reinterpret_cast<float4*>(args.shares) + index * Shape::kMultiplying + thread;
}

template <class Shape>
__device__ inline void StoreShare(const WgmmaArgs& args, bool begins,
                                  const float (&from)[Shape::kColumns / 2]) {
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i) {
    __stcg(ShareOf<Shape>(args, blockIdx.x, begins, i),
           make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]));
  }
}

// The shares of a tile added in the order of K, to y. A block for each tile and 4 of a thread's
// sums.
template <class Shape>
__global__ void __launch_bounds__(Shape::kMultiplying)
    AddSharesKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args) {
  LaunchDependents();
  WaitForDependencies();
  const auto of_shared = static_cast<int32_t>(blockIdx.x) / Shape::kVectors;
  const int vector = static_cast<int>(blockIdx.x) % Shape::kVectors;
  const int64_t first_unit = static_cast<int64_t>(of_shared) * w.units;
  using Work = WgmmaWork<Asking::kThread>;
  const int32_t first = Work::BlockOf(args, w.units, first_unit);
  const int32_t last = Work::BlockOf(args, w.units, first_unit + w.units - 1);
  if (first == last) return;  // no one's share: stored where it was made
  float sums[4] = {};
#pragma unroll 4
  for (int32_t block = first; block <= last; ++block) {
    const float4 part = __ldcg(ShareOf<Shape>(args, block, block == first, vector));
    sums[0] = __fadd_rn(sums[0], part.x);
    sums[1] = __fadd_rn(sums[1], part.y);
    sums[2] = __fadd_rn(sums[2], part.z);
    sums[3] = __fadd_rn(sums[3], part.w);
  }
  const int32_t tile = args.whole_tiles + of_shared;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t n = tile / args.column_tiles * Shape::kRows + warp * kUnitRows + lane / 4;
  const int32_t row = tile % args.column_tiles * Shape::kColumns + vector * 8 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t output = n + i / 2 * 8;
    if (output >= w.n || row + i % 2 >= args.m) continue;
    StoreElement(args.y, args.y_type, (row + i % 2) * args.y_stride + output,
                 OutputFactors(w, args, output).Finish(sums[i]));
  }
}

// The weights of 32 inputs as operands of two wgmmas.
__device__ inline void ToFragments(const uint32_t (&low)[4], const uint32_t (&high)[4],
                                   uint32_t (*fragments)[4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    fragments[j][0] = low[2 * j];
    fragments[j][1] = high[2 * j];
    fragments[j][2] = low[2 * j + 1];
    fragments[j][3] = high[2 * j + 1];
  }
}

// Part `part` of a unit, kBlocks x 32 inputs, as operands of wgmmas of 16 inputs each.
template <class Unit, int kBlocks>
__device__ inline void DecodePart(const WeightView& w, const uint32_t* table, Unit& unit, int part,
                                  uint32_t (&fragments)[kBlocks * 2][4]) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    uint32_t low[4];
    uint32_t high[4];
    unit.Decode(w, table, part * kBlocks + i, low, high);
    ToFragments(low, high, fragments + 2 * i);
  }
}

template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args,
                const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Stage = WgmmaStage<Unit, Shape>;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kScales = Unit::kScalesPerUnit;
  constexpr int kParts = kScales > 2 || Shape::kSmallParts ? 4 : 2;  // of a unit, in turn
  constexpr int kBlocks = 4 / kParts;                                // of 32 inputs in a part
  extern __shared__ __align__(1024) uint32_t shared_words[];
  __shared__ WgmmaBarriers barriers;
  const uint32_t full = SharedAddress(barriers.full);
  const uint32_t empty = SharedAddress(barriers.empty);
  const uint32_t ring = (SharedAddress(shared_words) + Unit::kTableBytes + kWgmmaAlign - 1) /
                        kWgmmaAlign * kWgmmaAlign;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const uint32_t staging = ring + args.stages * Stage::kBytes + warp / 4 * Shape::kStagingBytes;
  LaunchDependents();
  if (threadIdx.x == Shape::kMultiplying) {
    // The number of stages as an argument of InitRing gives other registers all over the loop.
    for (int stage = 0; stage < args.stages; ++stage) {
      InitStage(full, empty, stage, Shape::kGroups * 4);
    }
    FenceBarrierInit();
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if (warp >= Shape::kGroups * 4) {
    ReleaseRegisters<Shape::kProducerRegisters>();
    if (threadIdx.x == Shape::kMultiplying) {
      ProduceStages<Unit, Shape>(w, args, maps, ring, full, empty);
    }
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y and the shares

  const uint32_t codes_at =
      ring + Stage::kCodesAt + warp * Unit::kCodeBytes + Unit::CodesOffset(lane);
  const uint32_t scales_at =
      ring + Stage::kScalesAt + warp * Unit::kScaleBytes + lane / 4 * Unit::kRowScaleBytes;
  const uint32_t zeros_at = ring + Stage::kZerosAt + warp * Unit::kZeroBytes + lane / 4 * 2;
  const int stages = Kept(args.stages);
  const auto give_back = [&](int stage) { ArriveByWarp(empty + stage * 8); };
  WgmmaSlot slot;
  float sums[kColumns / 2];
  float totals[Shape::kScaled ? 1 : kColumns / 2];  // of a chain of units
  uint32_t a[2][kBlocks * 2][4];
  WgmmaWork<Asking::kWarp> work(args, w.units);
  while (work.Next(args, w.units)) {
    if constexpr (Shape::kScaled) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[i] = 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) totals[i] = 0.0f;
    }
    float2 scale = {};  // of the sums
    int before = -1;    // the stage that they are of
    for (int32_t unit = work.first; unit < work.end; ++unit) {
      const uint32_t offset = slot.stage * Stage::kBytes;
      const uint64_t x = SwizzledOperand(OfWarp(ring + offset));
      WaitBarrier(full + slot.stage * 8, slot.parity);
      Unit now;
      now.Load(codes_at + offset, scales_at + offset, zeros_at + offset);
      if constexpr (Shape::kScaled) {
        // Two parts a half of a unit: with more than two in a loop the compiler finds no way to
        // keep their fragments apart, and waits after every wgmma.
        constexpr int kSteps = kBlocks * 2;
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            DecodePart<Unit, kBlocks>(w, shared_words, now, part, a[part]);
            HoldRegisters(sums);
            HoldRegisters(a[part]);
            WgmmaFence();
#pragma unroll
            for (int i = 0; i < kSteps; ++i) {
              Wgmma(Pairs{}, sums, a[part][i],
                    x + half * (Stage::kHalfBytes >> 4) + (part * kSteps + i) * kSwizzledStep, 1);
            }
            WgmmaCommit();
            WgmmaWait<1>();
            HoldRegisters(a[1 - part]);
            if (part == 0 && half == 0 && before >= 0) give_back(before);
          }
          if (half == 0) now.NextHalf();
        }
      } else {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          auto& fragments = a[part % 2];
          DecodePart<Unit, kBlocks>(w, shared_words, now, part, fragments);
          const bool starts = part * kScales % kParts == 0;
          if (starts && (part > 0 || before >= 0)) {
            WgmmaWait<0>();
            HoldRegisters(sums);
            HoldRegisters(a[(part + 1) % 2]);
            if (part == 0) give_back(before);
            AddScaled(totals, sums, scale);
          }
          HoldRegisters(sums);
          HoldRegisters(fragments);
          WgmmaFence();
#pragma unroll
          for (int i = 0; i < kBlocks * 2; ++i) {
            const int at = part * kBlocks * 2 + i;  // of 16 inputs
            Wgmma(Pairs{}, sums, fragments[i],
                  x + at / 4 * (Stage::kHalfBytes >> 4) + at % 4 * kSwizzledStep,
                  starts && i == 0 ? 0 : 1);
          }
          WgmmaCommit();
          WgmmaWait<1>();
          HoldRegisters(a[(part + 1) % 2]);
          scale = now.Scale(w, part * kScales / kParts);
        }
      }
      before = slot.stage;
      slot.Advance(stages);
    }
    WgmmaWait<0>();
    if (before >= 0) give_back(before);
    HoldRegisters(sums);
    if constexpr (!Shape::kScaled) {
      AddScaled(totals, sums, scale);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[i] = totals[i];
    }
    if (work.end - work.first < w.units) {
      StoreShare<Shape>(args, work.first == 0, sums);
      continue;
    }
    const int32_t n = work.tile / args.column_tiles * Shape::kRows + warp / 4 * kWgmmaRows;
    StoreTotals<Shape>(w, args, sums, n, work.tile % args.column_tiles * kColumns, staging);
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_
