// WgmmaKernel for few outputs: a pair of blocks, a cluster, takes a tile, each half of K, and
// within a block kSplits warpgroups take its units in turn. Their sums meet in shared memory, each
// block's own and the other's: nothing goes through device memory, and there is no second kernel.
// x lies as it came (quad_units.cuh), so that there is none before it either. The rings, and what
// fills them, are those of cluster_rings.cuh; gemm_wgmma_cluster_turns.cuh has another loop.
//
//   block 0: units [0, U / 2)                block 1: units [U / 2, U)
//
//   device memory   codes, scales, zero points              x
//        | a thread each, tensor copies     |
//   two rings       [stage of weights]                      [stage of x]
//        |          given back once decoded                 given back once multiplied
//   registers       decode, warpgroups in turn  ------>  wgmma -> sums -> totals
//        |
//   totals of all warpgroups, where the rings were: added in their order
//        | half of the sums stay, half go to the inbox of the other block, whose barrier counts
//        | the bytes
//   y of the first half of the sums (block 0), y of the second (block 1)
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_CUH_

#include "kernels/cuda/device/cluster_rings.cuh"
#include "kernels/cuda/device/gemm_wgmma.cuh"

namespace nibble::cuda {

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

// How the sums of a tile, 4 of a thread and a warpgroup's at a time, are finished: each block has
// half of these items, a thread kSteps of them.
template <class Shape>
struct WgmmaClusterItems {
  static constexpr int kAll = Shape::kMultiplying / Shape::kSplits * Shape::kVectors;
  static constexpr int kOwn = kAll / 2;
  static constexpr int kSteps = (kOwn + Shape::kMultiplying - 1) / Shape::kMultiplying;

  // Runs each(step, index among a block's items) for those of this thread.
  template <class Each>
  __device__ static void ForOwn(Each each) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = step * Shape::kMultiplying + static_cast<int>(threadIdx.x);
      if (kOwn % Shape::kMultiplying == 0 || at < kOwn) each(step, at);
    }
  }
};

// a + b
__device__ inline float4 Added(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}

// The block's items to y.
template <class Out, class Shape>
__device__ inline void StoreItems(const WeightView& w, const WgmmaArgs& args, int32_t tile,
                                  const float4 (&sums)[WgmmaClusterItems<Shape>::kSteps],
                                  int32_t first_item) {
  const int32_t first_n = tile / args.column_tiles * Shape::kRows;
  const int32_t first_row = tile % args.column_tiles * Shape::kColumns;
  WgmmaClusterItems<Shape>::ForOwn([&](int step, int at) {
    const int item = first_item + at;
    const int vector = item / 128 % Shape::kVectors;
    const int group = item / 128 / Shape::kVectors;
    const int32_t n = first_n + group * kWgmmaRows + item % 128 / 32 * kUnitRows + item % 32 / 4;
    StoreFragment<Out>(w, args, sums[step], n, first_row + vector * 8 + item % 4 * 2);
  });
}

// partials: shared memory for the sums of all threads; all stages of the rings have been used. The
// inbox of the other block is open after AwaitCluster.
template <class Shape>
__device__ inline void AddInCluster(const WeightView& w, const WgmmaArgs& args, int32_t tile,
                                    const float (&sums)[Shape::kColumns / 2], uint32_t partials,
                                    uint32_t inbox, uint32_t inbox_barrier) {
  using Items = WgmmaClusterItems<Shape>;
  const auto all_threads = [] {
    asm volatile("bar.sync 1, %0;" ::"n"(Shape::kMultiplying) : "memory");
  };
  all_threads();
  constexpr int kOfGroup = Shape::kVectors * 128;
  const uint32_t to = partials + (threadIdx.x / 128 * kOfGroup + threadIdx.x % 128) * 16;
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i) {
    StoreShared4Floats(to + i * 128 * 16,
                       make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  }
  all_threads();
  const auto sum_of = [&](int item) {
    float4 parts[Shape::kSplits];
#pragma unroll
    for (int i = 0; i < Shape::kSplits; ++i) {
      parts[i] = LoadShared4Floats(partials + (i * Items::kAll + item) * 16);
    }
    float4 sum = parts[0];
#pragma unroll
    for (int i = 1; i < Shape::kSplits; ++i) sum = Added(sum, parts[i]);
    return sum;
  };
  const auto rank = static_cast<int>(RankInCluster());
  const uint32_t other_inbox = SharedOf(inbox, rank ^ 1);
  const uint32_t other_barrier = SharedOf(inbox_barrier, rank ^ 1);
  AwaitCluster();
  Items::ForOwn([&](int, int at) {
    PushFloats(other_inbox + at * 16, sum_of((1 - rank) * Items::kOwn + at), other_barrier);
  });
  float4 own[Items::kSteps];
  Items::ForOwn([&](int step, int at) { own[step] = sum_of(rank * Items::kOwn + at); });
  WaitBarrierOfCluster(inbox_barrier, 0);
  Items::ForOwn(
      [&](int step, int at) { own[step] = Added(own[step], LoadShared4Floats(inbox + at * 16)); });
  switch (args.y_type) {
    case Element::kBF16:
      StoreItems<__nv_bfloat16, Shape>(w, args, tile, own, rank * Items::kOwn);
      break;
    case Element::kF16:
      StoreItems<__half, Shape>(w, args, tile, own, rank * Items::kOwn);
      break;
    default:
      StoreItems<float, Shape>(w, args, tile, own, rank * Items::kOwn);
  }
}

template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaClusterKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args,
                       const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Rings = WgmmaClusterRings<Unit, Shape>;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kScales = Unit::kScalesPerUnit;
  constexpr int kParts = kScales > 2 || Shape::kSmallParts ? 4 : 2;  // of a unit, in turn
  constexpr int kBlocks = 4 / kParts;                                // of 32 inputs in a part
  extern __shared__ __align__(1024) uint32_t shared_words[];
  __shared__ WgmmaClusterBarriers barriers;
  static_assert(sizeof(barriers) + kClusterSharedBytes <= 227 * 1024);
  const uint32_t full = SharedAddress(barriers.full);
  const uint32_t empty = SharedAddress(barriers.empty);
  const uint32_t x_full = SharedAddress(barriers.x_full);
  const uint32_t x_empty = SharedAddress(barriers.x_empty);
  const uint32_t inbox_barrier = SharedAddress(&barriers.inbox);
  const uint32_t x_ring = (SharedAddress(shared_words) + Unit::kTableBytes + kWgmmaAlign - 1) /
                          kWgmmaAlign * kWgmmaAlign;
  const uint32_t ring = x_ring + Rings::kWeightsAt;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  LaunchDependents();
  if (threadIdx.x == Shape::kMultiplying) {
    PrefetchMap(maps.codes);
    PrefetchMap(maps.scales);
    PrefetchMap(maps.x);
    InitClusterBarriers<Unit, Shape>(full, empty, x_full, x_empty, inbox_barrier);
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if constexpr (!Rings::kLateInbox) ArriveCluster<false>();
  const auto work = WgmmaClusterWork::Of<Shape>(w.units);
  if (warp >= Shape::kGroups * 4) {
    ProduceInCluster<Unit, Shape>(args, maps, work, warp, lane, ring, x_ring, full, empty, x_full,
                                  x_empty);
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y

  const int tile16 = warp % Shape::kTiles;
  const int split = warp / Shape::kTiles;
  const uint32_t codes_at = ring + tile16 * Unit::kCodeBytes + Unit::CodesOffset(lane);
  const uint32_t scales_at =
      ring + Rings::kScalesAt + tile16 * Unit::kScaleBytes + lane / 4 * Unit::kRowScaleBytes;
  const uint32_t zeros_at = ring + Rings::kZerosAt + tile16 * Unit::kZeroBytes + lane / 4 * 2;
  const auto await_x = [&](const WgmmaSlot& at) {
    // Others gave it back: they have waited for the phase before.
    if constexpr (Rings::kXOfAny) WaitBarrier(x_empty + at.stage * 8, at.parity ^ 1);
    WaitBarrier(x_full + at.stage * 8, at.parity);
  };
  WgmmaSlot slot;  // of weights
  WgmmaSlot x_slot;
  slot.stage = x_slot.stage = split;
  float sums[kColumns / 2] = {};
  float totals[kColumns / 2] = {};
  uint32_t a[2][kBlocks * 2][4];
  float2 scale = {};  // of the sums
  int before = -1;    // the stage of x that they are of
  for (int32_t unit = work.first + split; unit < work.end; unit += Shape::kSplits) {
    const uint32_t offset = slot.stage * Rings::kBytes;
    const uint64_t x = SwizzledOperand(OfWarp(x_ring + x_slot.stage * Rings::kXBytes));
    WaitBarrier(full + slot.stage * 8, slot.parity);
    Unit now;
    now.Load(codes_at + offset, scales_at + offset, zeros_at + offset);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      auto& fragments = a[part % 2];
      DecodePart<Unit, kBlocks>(w, shared_words, now, part, fragments);
      const bool starts = part * kScales % kParts == 0;
      if (starts && (part > 0 || before >= 0)) {
        WgmmaWait<0>();
        HoldRegisters(sums);
        HoldRegisters(a[(part + 1) % 2]);
        if (part == 0) ArriveByWarp(x_empty + before * 8);
        AddScaled(totals, sums, scale);
      }
      HoldRegisters(sums);
      HoldRegisters(fragments);
      if (part == 0) await_x(x_slot);
      if (part == kParts - 1) ArriveByWarp(empty + slot.stage * 8);
      MultiplyUnitPart<Pairs, Rings::kXHalfBytes>(sums, fragments, x, part, starts);
      HoldRegisters(a[(part + 1) % 2]);
      scale = now.Scale(w, part * kScales / kParts);
    }
    before = x_slot.stage;
    slot.AdvanceBy(Shape::kSplits, Rings::kStages);
    x_slot.AdvanceBy(Shape::kSplits, Rings::kXStages);
  }
  WgmmaWait<0>();
  HoldRegisters(sums);
  // The last stages, which nobody fills again, are not given back.
  if constexpr (Rings::kLateInbox) ArriveCluster<true>();
  const uint32_t inbox = x_ring + static_cast<uint32_t>(Rings::kInboxAt);
  AddScaled(totals, sums, scale);
  AddInCluster<Shape>(w, args, work.tile, totals, x_ring, inbox, inbox_barrier);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_CUH_
