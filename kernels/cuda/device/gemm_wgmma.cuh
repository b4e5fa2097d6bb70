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
//        |          points; x of INT4 put in order, complete on `ready`; given back on `empty`
//   registers       decode -> wgmma m64 x kColumns x k16 -> sums * scales -> totals
//        |
//   y               + bias; or, of a tile that blocks share, to memory: AddSharesKernel adds the
//                   shares in the order of K.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CUH_

#include "kernels/cuda/device/output_factors.cuh"
#include "kernels/cuda/device/ring_units.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/wgmma_stages.cuh"

namespace nibble::cuda {

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

// Adds to sums, which begin at 0 where it `starts`, the products of x and of part `part` of a
// unit, kSteps x 16 inputs. Halves of a unit of x are kHalfBytes apart. On return the part before
// has ended.
template <class Pairs, int kHalfBytes, int kSums, int kSteps>
__device__ inline void MultiplyUnitPart(float (&sums)[kSums],
                                        const uint32_t (&fragments)[kSteps][4], uint64_t x,
                                        int part, bool starts) {
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = part * kSteps + i;  // of 16 inputs
    Wgmma(Pairs{}, sums, fragments[i], x + at / 4 * (kHalfBytes >> 4) + at % 4 * kSwizzledStep,
          starts && i == 0 ? 0 : 1);
  }
  WgmmaCommit();
  WgmmaWait<1>();
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
  const uint32_t empty = full + kWgmmaEmptyAt;
  const uint32_t readable = full + kWgmmaReadableAt<Unit>;
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
      InitReady<Unit>(full, stage);
    }
    FenceBarrierInit();
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if (warp >= Shape::kGroups * 4) {
    ReleaseRegisters<Shape::kProducerRegisters>();
    FeedStages<Unit, Shape>(w, args, maps, ring, full, warp - Shape::kGroups * 4, lane);
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
      WaitBarrier(readable + slot.stage * 8, slot.parity);
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
          MultiplyUnitPart<Pairs, Stage::kHalfBytes>(sums, fragments, x, part, starts);
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
