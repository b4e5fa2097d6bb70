// WgmmaKernel for few outputs: a pair of blocks, a cluster, takes a tile, each half of K, and
// within a block kSplits warpgroups take its units in turn. Their sums meet in shared memory, each
// block's own and the other's: nothing goes through device memory, and there is no second kernel.
// x lies as it came (quad_units.cuh), so that there is none before it either.
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

#include "kernels/cuda/device/gemm_wgmma.cuh"

namespace nibble::cuda {

// As WgmmaShape. kSplits: warpgroups that share outputs, each of which takes every kSplits-th unit.
template <int kColumns_, int kGroups_, int kSplits_>
struct WgmmaClusterShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kSplits = kSplits_;
  static constexpr int kBlocks = 2;  // of a cluster
  static constexpr int kRows = kGroups / kSplits * kWgmmaRows;
  static constexpr int kTiles = kRows / kUnitRows;
  static constexpr int kMultiplying = kGroups * 128;
  static constexpr int kVectors = kColumns / 8;
  static constexpr bool kSmallParts = kGroups == 4 && kColumns > 32;
  static constexpr int kThreads = kMultiplying + 128;
  static constexpr int kProducerRegisters = kGroups == 4 ? 32 : 40;
  static constexpr int kRegisters = kGroups == 4 ? 112 : 232;
  static constexpr int kSumsBytes = kMultiplying * kColumns * 2;  // of a block
  // What the other block sends: of half of the tile's sums, those of its warpgroups added.
  static constexpr int kInboxBytes = kSumsBytes / kSplits / 2;
};

inline constexpr int kClusterSharedBytes = 226 * 1024;  // dynamic, of a block
inline constexpr int kClusterMaxStages = 24;
inline constexpr int kClusterMaxXStages = 16;

struct WgmmaClusterBarriers {
  uint64_t full[kClusterMaxStages];
  uint64_t empty[kClusterMaxStages];
  uint64_t x_full[kClusterMaxXStages];
  uint64_t x_empty[kClusterMaxXStages];
  uint64_t inbox;
};

constexpr int Lesser(int a, int b) { return a < b ? a : b; }
constexpr int Greater(int a, int b) { return a < b ? b : a; }
constexpr int WholeMultiple(int value, int of) { return value / of * of; }

// The rings, from a multiple of kWgmmaAlign on: x [kXStages][2 halves of a unit][kColumns][64],
// 128-byte swizzle, then weights [kStages]. In bytes; kInboxAt is below 0 where it is the table.
template <class Unit, class Shape>
struct WgmmaClusterRings {
  static constexpr int kXHalfBytes = Shape::kColumns * 128;
  static constexpr int kXBytes = 2 * kXHalfBytes;
  static constexpr int kScalesAt = Shape::kTiles * Unit::kCodeBytes;  // of a stage of weights
  static constexpr int kZerosAt = kScalesAt + Shape::kTiles * Unit::kScaleBytes;
  static constexpr int kFilled = kZerosAt + Shape::kTiles * Unit::kZeroBytes;
  static constexpr int kBytes = (kFilled + 127) / 128 * 128;

  static constexpr int kBefore = Unit::kTableBytes + kWgmmaAlign;
  static constexpr int kRoom = kClusterSharedBytes - kBefore;
  // The inbox has memory of its own, and is open from the start on. Where that left too few stages
  // for so many rows of x, it lies where the table or the rings were, and opens once nobody needs
  // them.
  static constexpr bool kLateInbox =
      Shape::kColumns == 128 && (Unit::kTableBytes > 0 || Shape::kRows == 256);
  static constexpr int kRingRoom = kRoom - (kLateInbox ? 0 : Shape::kInboxBytes);
  static constexpr int kLeastStages = Shape::kSplits * 3;
  // Of multiples of kSplits stages each is always the same warpgroups', which so have waited for
  // all phases of its barrier (WaitBarrier). Where so many of x do not fit, kXOfAny.
  static constexpr int kFittingX =
      Lesser(kClusterMaxXStages, (kRingRoom - kLeastStages * kBytes) / kXBytes);
  static constexpr int kXStages =
      kFittingX < 2 * Shape::kSplits ? kFittingX : WholeMultiple(kFittingX, Shape::kSplits);
  static constexpr bool kXOfAny = kXStages % Shape::kSplits != 0;
  static constexpr int kStages = WholeMultiple(
      Lesser(kClusterMaxStages, (kRingRoom - kXStages * kXBytes) / kBytes), Shape::kSplits);
  // A warpgroup holds a stage of x until it has the next one.
  static_assert(kXStages > Shape::kSplits && kStages >= kLeastStages);

  static constexpr int kWeightsAt = kXStages * kXBytes;
  static constexpr int kRingBytes = kWeightsAt + kStages * kBytes;
  static constexpr int kInboxAt = !kLateInbox ? Greater(kRingBytes, Shape::kSumsBytes)
                                  : Unit::kTableBytes >= Shape::kInboxBytes ? -Unit::kTableBytes
                                                                            : Shape::kSumsBytes;
  static constexpr int kUsed =
      Greater(Greater(kRingBytes, Shape::kSumsBytes), kInboxAt + Shape::kInboxBytes);
  static_assert(kUsed <= kRoom);
  static constexpr int kSharedBytes = kBefore + kUsed;
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

// The thread that fills the ring of weights, which are on their way before x is there.
template <class Unit, class Shape>
__device__ inline void ProduceClusterWeights(const WgmmaArgs& args, const WgmmaMaps& maps,
                                             const WgmmaClusterWork& work, uint32_t ring,
                                             uint32_t full, uint32_t empty) {
  using Rings = WgmmaClusterRings<Unit, Shape>;
  const uint64_t once = args.column_tiles == 1 ? EvictFirstPolicy() : UnchangedPolicy();
  const int32_t tile16 = work.tile / args.column_tiles * Shape::kTiles;
  WgmmaSlot slot;
  slot.parity = 1;  // all stages are free
  for (int32_t unit = work.first; unit < work.end; ++unit) {
    const uint32_t to = ring + slot.stage * Rings::kBytes;
    const uint32_t barrier = full + slot.stage * 8;
    WaitBarrier(empty + slot.stage * 8, slot.parity);
    ArriveExpecting(barrier, Rings::kFilled);
    TensorCopyUnitsOnce(to, maps.codes, unit, tile16, barrier, once);
    TensorCopyOnce(to + Rings::kScalesAt, maps.scales, unit * Unit::kScalesPerUnit * kUnitRows,
                   tile16, barrier, once);
    if constexpr (Unit::kZeroBytes > 0) {
      TensorCopyOnce(to + Rings::kZerosAt, maps.zero_points, unit * Unit::kZeroBytes, tile16,
                     barrier, once);
    }
    slot.Advance(Rings::kStages);
  }
}

// The thread that fills the ring of x.
template <class Unit, class Shape>
__device__ inline void ProduceClusterX(const WgmmaArgs& args, const WgmmaMaps& maps,
                                       const WgmmaClusterWork& work, uint32_t ring, uint32_t full,
                                       uint32_t empty) {
  using Rings = WgmmaClusterRings<Unit, Shape>;
  const int32_t row = work.tile % args.column_tiles * Shape::kColumns;
  WgmmaSlot slot;
  slot.parity = 1;
  WaitForDependencies();
  for (int32_t unit = work.first; unit < work.end; ++unit) {
    const uint32_t barrier = full + slot.stage * 8;
    WaitBarrier(empty + slot.stage * 8, slot.parity);
    ArriveExpecting(barrier, Rings::kXBytes);
    TensorCopyUnits(ring + slot.stage * Rings::kXBytes, maps.x, row, unit * 2, barrier);
    slot.Advance(Rings::kXStages);
  }
}

// By one thread, before the blocks of the cluster meet.
template <class Unit, class Shape>
__device__ inline void InitClusterBarriers(uint32_t full, uint32_t empty, uint32_t x_full,
                                           uint32_t x_empty, uint32_t inbox) {
  using Rings = WgmmaClusterRings<Unit, Shape>;
  InitRing(full, empty, Rings::kStages, Shape::kTiles);
  InitRing(x_full, x_empty, Rings::kXStages, Shape::kTiles);
  InitBarrier(inbox, 1);
  ArriveExpecting(inbox, Shape::kInboxBytes);
  FenceBarrierInit();
}

// The warps that do not multiply: a thread of the first two fills a ring each.
template <class Unit, class Shape>
__device__ inline void ProduceInCluster(const WgmmaArgs& args, const WgmmaMaps& maps,
                                        const WgmmaClusterWork& work, int warp, int lane,
                                        uint32_t ring, uint32_t x_ring, uint32_t full,
                                        uint32_t empty, uint32_t x_full, uint32_t x_empty) {
  ReleaseRegisters<Shape::kProducerRegisters>();
  if (warp == Shape::kGroups * 4 && lane == 0) {
    ProduceClusterWeights<Unit, Shape>(args, maps, work, ring, full, empty);
  }
  if (warp == Shape::kGroups * 4 + 1 && lane == 0) {
    ProduceClusterX<Unit, Shape>(args, maps, work, x_ring, x_full, x_empty);
  }
  __syncwarp();
  if constexpr (!WgmmaClusterRings<Unit, Shape>::kLateInbox) AwaitCluster();
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
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < kBlocks * 2; ++i) {
        const int at = part * kBlocks * 2 + i;  // of 16 inputs
        Wgmma(Pairs{}, sums, fragments[i],
              x + at / 4 * (Rings::kXHalfBytes >> 4) + at % 4 * kSwizzledStep,
              starts && i == 0 ? 0 : 1);
      }
      WgmmaCommit();
      WgmmaWait<1>();
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
