// What produces in the kernels of pairs of blocks: their shapes, the rings of weights and of x in
// shared memory, the barriers of these, and the warpgroup that fills them. gemm_wgmma_cluster.cuh
// draws the kernel.
//
//   warp 0   a thread: codes, scales, zero points  -->  ring of weights, `full`
//   warp 1   a thread: x                           -->  ring of x, `x_full`
//   warps 2, 3   of shapes that arrange x: x of every second stage each, put in another order where
//                it lies (arrange_stage.cuh), `x_ready`
//
// Whoever multiplies gives stages back by `empty` and `x_empty`.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_CLUSTER_RINGS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_CLUSTER_RINGS_CUH_

#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/wgmma_stages.cuh"

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
  // Of gemm_wgmma_cluster_turns.cuh: how x meets the codes, and stages of a warpgroup in a turn, of
  // weights and of x; 0: as many as there is room for.
  static constexpr ClusterX kX = ClusterX::kAsItLies;
  static constexpr int kTurn = 0;
  static constexpr int kXTurn = 0;
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
  uint64_t x_ready[kClusterMaxXStages];  // x is full, and arranged
};
// From `full`.
inline constexpr uint32_t kClusterEmptyAt = kClusterMaxStages * 8;
inline constexpr uint32_t kClusterXFullAt = 2 * kClusterEmptyAt;
inline constexpr uint32_t kClusterXEmptyAt = kClusterXFullAt + kClusterMaxXStages * 8;
inline constexpr uint32_t kClusterInboxAt = kClusterXEmptyAt + kClusterMaxXStages * 8;
inline constexpr uint32_t kClusterXReadyAt = kClusterInboxAt + 8;
static_assert(sizeof(WgmmaClusterBarriers) == kClusterXReadyAt + kClusterMaxXStages * 8);
inline constexpr int kClusterArrangingWarps = 2;  // beside those whose threads fill the rings

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
  static constexpr int kTurnX = Shape::kXTurn * Shape::kSplits;
  static constexpr int kTurnWeights = Shape::kTurn * Shape::kSplits;
  static constexpr int kXStages = Shape::kXTurn > 0 ? kTurnX
                                  : kFittingX < 2 * Shape::kSplits
                                      ? kFittingX
                                      : WholeMultiple(kFittingX, Shape::kSplits);
  static constexpr bool kXOfAny = kXStages % Shape::kSplits != 0;
  static constexpr int kStages =
      Shape::kTurn > 0
          ? kTurnWeights
          : WholeMultiple(Lesser(kClusterMaxStages, (kRingRoom - kXStages * kXBytes) / kBytes),
                          Shape::kSplits);
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

// A warp beside those that fill the rings: arranges x of its stages, every
// kClusterArrangingWarps-th, as they are filled. Two warps at a stage would be sooner done with it,
// but wait, fence and arrive twice as often.
template <class Arrangement, class Unit, class Shape>
__device__ inline void ArrangeClusterX(const WgmmaClusterWork& work, int warp, int lane,
                                       uint32_t ring, uint32_t full) {
  using Rings = WgmmaClusterRings<Unit, Shape>;
  static_assert(Rings::kXStages % kClusterArrangingWarps == 0, "a stage is one warp's");
  const Arrangement lanes(lane);
  ring = Kept(ring);
  WgmmaSlot slot;
  slot.stage = warp;
#pragma unroll 1
  for (int32_t left = work.end - work.first - warp; left > 0; left -= kClusterArrangingWarps) {
    const uint32_t barrier = full + slot.stage * 8;
    WaitBarrier(barrier, slot.parity);
    lanes.ArrangeAll<Shape::kColumns>(ring + slot.stage * Rings::kXBytes);
    ArriveByWarp(barrier + kClusterXReadyAt - kClusterXFullAt);
    slot.AdvanceBy(kClusterArrangingWarps, Rings::kXStages);
  }
}

// By one thread, before the blocks of the cluster meet.
template <class Unit, class Shape>
__device__ inline void InitClusterBarriers(uint32_t full, uint32_t empty, uint32_t x_full,
                                           uint32_t x_empty, uint32_t inbox) {
  using Rings = WgmmaClusterRings<Unit, Shape>;
  InitRing(full, empty, Rings::kStages, Shape::kTiles);
  InitRing(x_full, x_empty, Rings::kXStages, Shape::kTiles);
  if constexpr (Shape::kX != ClusterX::kAsItLies) {
    for (int stage = 0; stage < Rings::kXStages; ++stage) {
      InitBarrier(full + kClusterXReadyAt + stage * 8, kWarpArrivals);
    }
  }
  InitBarrier(inbox, 1);
  ArriveExpecting(inbox, Shape::kInboxBytes);
  FenceBarrierInit();
}

// The warps that do not multiply: a thread of the first two fills a ring each, the others
// arrange x.
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
  if (Shape::kX != ClusterX::kAsItLies && warp >= Shape::kGroups * 4 + 2) {
    const int arranging = warp - Shape::kGroups * 4 - 2;
    if constexpr (Shape::kX == ClusterX::kWords) {
      ArrangeClusterX<StageArrangement, Unit, Shape>(work, arranging, lane, x_ring, x_full);
    } else if constexpr (Shape::kX == ClusterX::kHalfWords) {
      ArrangeClusterX<HalfWordSwaps, Unit, Shape>(work, arranging, lane, x_ring, x_full);
    }
  }
  __syncwarp();
  if constexpr (!WgmmaClusterRings<Unit, Shape>::kLateInbox) AwaitCluster();
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_CLUSTER_RINGS_CUH_
