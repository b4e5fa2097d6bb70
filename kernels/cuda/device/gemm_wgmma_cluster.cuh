// WgmmaKernel for few outputs: a pair of blocks, a cluster, takes a tile, each half of K, and
// within a block kSplits warpgroups take its units in turn. Their sums meet in shared memory, each
// block's own and the other's: nothing goes through device memory, and there is no second kernel.
// x lies as it came (quad_units.cuh), so that there is none before it either.
//
//   block 0: units [0, U / 2)      block 1: units [U / 2, U)       its warpgroups in turn
//        | sums, in the ring's memory      |
//        +------- cluster barrier ---------+
//   y of the first half of the sums   y of the second half         added in the order of block,
//                                                                  split
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_CUH_

#include "kernels/cuda/device/gemm_wgmma.cuh"

namespace nibble::cuda {

// As WgmmaShape. kSplits: warpgroups that share outputs, each of which takes every kSplits-th unit.
template <int kColumns_, int kGroups_, bool kScaled_, int kSplits_>
struct WgmmaClusterShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kGroups = kGroups_;
  static constexpr bool kScaled = kScaled_;
  static constexpr int kSplits = kSplits_;
  static constexpr int kBlocks = 2;  // of a cluster
  static constexpr int kRows = kGroups / kSplits * kWgmmaRows;
  static constexpr int kTiles = kRows / kUnitRows;
  static constexpr int kMultiplying = kGroups * 128;
  static constexpr int kVectors = kColumns / 8;
  static constexpr bool kSmallParts = kGroups == 4 && (kScaled || kColumns > 32);
  static constexpr int kThreads = kMultiplying + 128;
  static constexpr int kProducerRegisters = kGroups == 4 ? 32 : 40;
  static constexpr int kRegisters = kGroups == 4 ? 112 : 232;
  static constexpr int kSumsBytes = kMultiplying * kColumns * 2;  // of a block
};

// What a block multiplies.
struct WgmmaClusterWork {
  int32_t tile;
  int32_t first;  // units of K
  int32_t end;

  template <class Shape>
  __device__ static WgmmaClusterWork Of(int32_t units) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t rank = block % Shape::kBlocks;
    return {block / Shape::kBlocks, OfWarp(units * rank / Shape::kBlocks),
            OfWarp(units * (rank + 1) / Shape::kBlocks)};
  }
};

// The producing thread. The weights of the first stages are on their way before x is there.
template <class Unit, class Shape>
__device__ inline void ProduceClusterStages(const WgmmaArgs& args, const WgmmaMaps& maps,
                                            const WgmmaClusterWork& work, uint32_t ring,
                                            uint32_t full, uint32_t empty) {
  using Stage = WgmmaStage<Unit, Shape>;
  const uint64_t once = args.column_tiles == 1 ? EvictFirstPolicy() : UnchangedPolicy();
  const int32_t tile16 = work.tile / args.column_tiles * Shape::kTiles;
  const int32_t row = work.tile % args.column_tiles * Shape::kColumns;
  const auto copy_weights = [&](int32_t unit, int stage) {
    CopyWeights<Unit, Shape>(maps, tile16, unit, ring + stage * Stage::kBytes, full + stage * 8,
                             once);
  };
  const auto copy_x = [&](int32_t unit, int stage) {
    TensorCopyUnits(ring + stage * Stage::kBytes, maps.x, row, unit * 2, full + stage * 8);
  };
  const int early = min(args.stages, work.end - work.first);
  for (int i = 0; i < early; ++i) copy_weights(work.first + i, i);
  WaitForDependencies();
  for (int i = 0; i < early; ++i) copy_x(work.first + i, i);
  WgmmaSlot slot;  // the first phase of `empty` ends with the first use of a stage
  for (int32_t unit = work.first + early; unit < work.end; ++unit) {
    WaitBarrier(empty + slot.stage * 8, slot.parity);
    copy_weights(unit, slot.stage);
    copy_x(unit, slot.stage);
    slot.Advance(args.stages);
  }
}

// Four sums of a thread, as wgmma leaves them, to y.
template <class Out>
__device__ inline void StoreFragment(const WeightView& w, const WgmmaArgs& args, float4 sums,
                                     int32_t n, int32_t row) {
  const float of_low[2] = {sums.x, sums.y};
  const float of_high[2] = {sums.z, sums.w};
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int32_t output = n + 8 * high;
    if (output >= w.n) continue;
    const OutputFactors factors(w, args, output);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + i >= args.m) continue;
      const float sum = factors.Finish(high == 0 ? of_low[i] : of_high[i]);
      static_cast<Out*>(args.y)[(row + i) * args.y_stride + output] = FromFloat<Out>(sum);
    }
  }
}

// Sums of the splits and blocks, 4 of a thread at a time, of which each block finishes every other
// 4 of all threads.
template <class Out, class Shape>
__device__ inline void FinishTile(const WeightView& w, const WgmmaArgs& args, int32_t tile,
                                  uint32_t partials, uint32_t rank) {
  constexpr int kOfSplit = Shape::kMultiplying / Shape::kSplits * Shape::kVectors;
  constexpr int kParts = Shape::kSplits * Shape::kBlocks;
  const int32_t first_n = tile / args.column_tiles * Shape::kRows;
  const int32_t first_row = tile % args.column_tiles * Shape::kColumns;
  for (int item = static_cast<int>(rank) * Shape::kMultiplying + threadIdx.x; item < kOfSplit;
       item += Shape::kMultiplying * Shape::kBlocks) {
    float4 parts[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const uint32_t there = SharedOf(partials, i / Shape::kSplits);
      parts[i] = LoadCluster4Floats(there + (i % Shape::kSplits * kOfSplit + item) * 16);
    }
    float4 sum = parts[0];
#pragma unroll
    for (int i = 1; i < kParts; ++i) {
      sum.x = __fadd_rn(sum.x, parts[i].x);
      sum.y = __fadd_rn(sum.y, parts[i].y);
      sum.z = __fadd_rn(sum.z, parts[i].z);
      sum.w = __fadd_rn(sum.w, parts[i].w);
    }
    const int thread = item % 128;
    const int vector = item / 128 % Shape::kVectors;
    const int group = item / 128 / Shape::kVectors;
    const int32_t n = first_n + group * kWgmmaRows + thread / 32 * kUnitRows + thread % 32 / 4;
    StoreFragment<Out>(w, args, sum, n, first_row + vector * 8 + thread % 4 * 2);
  }
}

// partials: shared memory for the sums of all threads; all stages of the ring have been used.
template <class Shape>
__device__ inline void AddInCluster(const WeightView& w, const WgmmaArgs& args, int32_t tile,
                                    const float (&sums)[Shape::kColumns / 2], uint32_t partials) {
  asm volatile("bar.sync 1, %0;" ::"n"(Shape::kMultiplying) : "memory");
  constexpr int kOfGroup = Shape::kVectors * 128;
  const uint32_t to = partials + (threadIdx.x / 128 * kOfGroup + threadIdx.x % 128) * 16;
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i) {
    StoreShared4Floats(to + i * 128 * 16,
                       make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  }
  SyncCluster();
  const uint32_t rank = RankInCluster();
  switch (args.y_type) {
    case Element::kBF16:
      FinishTile<__nv_bfloat16, Shape>(w, args, tile, partials, rank);
      break;
    case Element::kF16:
      FinishTile<__half, Shape>(w, args, tile, partials, rank);
      break;
    default:
      FinishTile<float, Shape>(w, args, tile, partials, rank);
  }
  __syncwarp();
  WaitForCluster();  // the other block may still read these
}

template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaClusterKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args,
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
  const auto work = WgmmaClusterWork::Of<Shape>(w.units);
  if (warp >= Shape::kGroups * 4) {
    ReleaseRegisters<Shape::kProducerRegisters>();
    if (threadIdx.x == Shape::kMultiplying) {
      ProduceClusterStages<Unit, Shape>(args, maps, work, ring, full, empty);
    }
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y

  const int tile16 = warp % Shape::kTiles;
  const int split = warp / Shape::kTiles;
  const uint32_t codes_at =
      ring + Stage::kCodesAt + tile16 * Unit::kCodeBytes + Unit::CodesOffset(lane);
  const uint32_t scales_at =
      ring + Stage::kScalesAt + tile16 * Unit::kScaleBytes + lane / 4 * Unit::kRowScaleBytes;
  const uint32_t zeros_at = ring + Stage::kZerosAt + tile16 * Unit::kZeroBytes + lane / 4 * 2;
  const int stages = Kept(args.stages);
  const auto give_back = [&](int stage) {
    __syncwarp();
    if (lane == 0) Arrive(empty + stage * 8);
  };
  WgmmaSlot slot;
  slot.stage = split;
  float sums[kColumns / 2] = {};
  float totals[Shape::kScaled ? 1 : kColumns / 2] = {};
  uint32_t a[2][kBlocks * 2][4];
  float2 scale = {};  // of the sums
  int before = -1;    // the stage that they are of
  for (int32_t unit = work.first + split; unit < work.end; unit += Shape::kSplits) {
    const uint32_t offset = slot.stage * Stage::kBytes;
    const uint64_t x = SwizzledOperand(OfWarp(ring + offset));
    WaitBarrier(full + slot.stage * 8, slot.parity);
    Unit now;
    now.Load(codes_at + offset, scales_at + offset, zeros_at + offset);
    if constexpr (Shape::kScaled) {
      // As in WgmmaKernel, two parts a half of a unit.
      constexpr int kSteps = kBlocks * 2;
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        const uint64_t x_half = x + half * (Stage::kHalfBytes >> 4);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          DecodePart<Pairs, Unit, true, kBlocks>(w, shared_words, now, part, a[part]);
          HoldRegisters(sums);
          HoldRegisters(a[part]);
          WgmmaFence();
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
            Wgmma(Pairs{}, sums, a[part][i], x_half + (part * kSteps + i) * kSwizzledStep, 1);
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
        DecodePart<Pairs, Unit, false, kBlocks>(w, shared_words, now, part, fragments);
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
    slot.AdvanceBy(Shape::kSplits, stages);
  }
  WgmmaWait<0>();
  HoldRegisters(sums);
  if constexpr (!Shape::kScaled) {
    AddScaled(totals, sums, scale);
    AddInCluster<Shape>(w, args, work.tile, totals, ring);
  } else {
    AddInCluster<Shape>(w, args, work.tile, sums, ring);
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_CUH_
