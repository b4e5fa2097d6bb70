// What a block of the wgmma kernels multiplies, and the ring of stages that it takes it from:
// shapes, barriers, the thread that copies weights and x, the warps that put x in order.
// gemm_wgmma.cuh draws the pipeline.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_STAGES_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_STAGES_CUH_

#include "kernels/cuda/device/arrange_stage.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
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
  static constexpr bool kSmallParts = kGroups > 2 && (kScaled || kColumns > 32);
  // The producer is a warpgroup too, so that it can pass its registers on.
  static constexpr int kThreads = kMultiplying + 128;
  static constexpr int kProducerRegisters = kGroups == 4 ? 32 : 40;
  static constexpr int kRegisters = kGroups == 4 ? 112 : kGroups == 3 ? 152 : 232;
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
  uint64_t ready[kWgmmaMaxStages];  // of kArrangesStages: full, and x in order
};
inline constexpr uint32_t kWgmmaEmptyAt = kWgmmaMaxStages * 8;  // from `full`
inline constexpr uint32_t kWgmmaReadyAt = 2 * kWgmmaMaxStages * 8;
static_assert(sizeof(WgmmaBarriers) == 3 * kWgmmaMaxStages * 8);

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
    TensorCopyUnits(to, maps.x, tile % args.column_tiles * Shape::kColumns, unit * 2, barrier);
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

// Whether x of a stage is put in order there. Lookups of tables leave the shared memory no time for
// it (H200, 57344x8192, 64 rows: 144 us against 135 of NF4), FP8 loses as much as it gains.
template <class Unit>
inline constexpr bool kArrangesStages = Unit::kTableBytes == 0 && !Unit::kBoxed;

// From the barrier that counts the copies of a stage to the one that its readers wait for.
template <class Unit>
inline constexpr uint32_t kWgmmaReadableAt = kArrangesStages<Unit> ? kWgmmaReadyAt : 0;

// A warp beside the producing thread: puts x of its stages in order, as they are filled.
template <class Unit, class Shape>
__device__ inline void ArrangeStages(const WeightView& w, const WgmmaArgs& args, uint32_t ring,
                                     uint32_t full, int warp, int lane) {
  const StageArrangement lanes(lane);
  ring = Kept(ring);
  WgmmaSlot slot;
  WgmmaWork<Asking::kWarp> work(args, w.units);
  while (work.Next(args, w.units)) {
    for (int32_t unit = work.first; unit < work.end; ++unit) {
      const uint32_t barrier = full + slot.stage * 8;
      WaitBarrier(barrier, slot.parity);
      lanes.Arrange<Shape::kColumns>(ring + slot.stage * WgmmaStage<Unit, Shape>::kBytes, warp);
      ArriveByWarp(barrier + kWgmmaReadyAt);
      slot.Advance(args.stages);
    }
  }
}

template <class Unit>
__device__ inline void InitReady(uint32_t full, int stage) {
  if constexpr (kArrangesStages<Unit>) {
    InitBarrier(full + kWgmmaReadyAt + stage * 8, kArrangingWarps * kWarpArrivals);
  }
}

// What the warpgroup of the producing thread does.
template <class Unit, class Shape>
__device__ inline void FeedStages(const WeightView& w, const WgmmaArgs& args, const WgmmaMaps& maps,
                                  uint32_t ring, uint32_t full, int warp, int lane) {
  if (warp > 0) {
    if constexpr (kArrangesStages<Unit>) {
      ArrangeStages<Unit, Shape>(w, args, ring, full, warp - 1, lane);
    }
  } else if (lane == 0) {
    ProduceStages<Unit, Shape>(w, args, maps, ring, full, full + kWgmmaEmptyAt);
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_STAGES_CUH_
