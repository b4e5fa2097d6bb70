// How a block of GemvRingKernel (gemv_ring.cuh) is divided: warps, stages, shared memory.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_LAYOUT_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_LAYOUT_CUH_

#include "kernels/cuda/device/gemv.cuh"
#include "kernels/cuda/device/ring_units.cuh"
#include "kernels/cuda/device/shared_fragments.cuh"

namespace nibble::cuda {

inline constexpr int kRingMaxStages = 16;
inline constexpr int kRingMaxParts = 8;  // of resident x
// Where the barriers of a block lie, after those of `full`.
inline constexpr int kRingEmptyAt = kRingMaxStages;
inline constexpr int kRingXFullAt = kRingEmptyAt + kRingMaxStages;
inline constexpr int kRingPartialFullAt = kRingXFullAt + kRingMaxParts;
inline constexpr int kRingPartialEmptyAt = kRingPartialFullAt + 2;
inline constexpr int kRingBarriers = kRingPartialEmptyAt + 2;

// kColumns: groups of 8 rows of x. kTiles: tiles of 16 outputs of a block. kWarps: that multiply.
// kHeld: units of x that each of them holds, or 0. kChains: sums that take the products of 32
// inputs in turn. kStageUnits: units of a tile in a stage, one for each of as many warps.
// kOwnFirst, of boxed units: each multiplying warp copies its own first unit, so that the first
// bytes do not wait for the tensor map.
template <int kColumns_, int kTiles_, int kWarps_, int kHeld_, int kChains_ = 1,
          int kStageUnits_ = 8, bool kOwnFirst_ = false>
struct RingShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kHeld = kHeld_;
  static constexpr int kChains = kChains_;
  static constexpr int kStageUnits = kStageUnits_;
  static constexpr bool kOwnFirst = kOwnFirst_;
  static constexpr bool kHeldX = kHeld > 0;
  // Registers are shared out by 4 warps: these fill up a multiple beside the producer.
  static constexpr int kReducers = 3;
  static constexpr int kAllThreads = (kWarps + 1 + kReducers) * 32;
  static constexpr int kStagesPerRound = kWarps / kStageUnits;
  static constexpr int kRows = kTiles * kUnitRows;
  // Of partial sums: floats from one row of x to the next.
  static constexpr int kPartialPitch = kRows + 4;
  static_assert(kWarps % kStageUnits == 0);
  // Whether products of units lie apart and are added in one order (ring_ordered.cuh).
  static constexpr bool kOrdered = false;
  // Bytes of one buffer of partial sums [warp][row of x][output].
  __host__ __device__ static constexpr int PartialBytes(int m) {
    return kWarps * m * kPartialPitch * 4;
  }
  __device__ static int ReducersOf(int) { return kReducers; }  // that take part
};

// The launch's own choices.
struct RingArgs {
  int32_t stages = 2;           // a multiple of kStagesPerRound: a stage is always the same warps'
  int32_t partial_buffers = 1;  // of the warps' sums: 1 or 2
  bool x_resident = false;      // without held x: all of it in shared memory, else in the stages
};

// Where the weights of a stage lie: codes first, of [tile][unit] like what follows them.
template <class Unit, class Shape>
struct RingStage {
  static constexpr int kUnits = Shape::kTiles * Shape::kStageUnits;
  static constexpr int kScalesAt = kUnits * Unit::kCodeBytes;
  static constexpr int kZerosAt = kScalesAt + kUnits * Unit::kScaleBytes;
  static constexpr int kBytes = kZerosAt + kUnits * Unit::kZeroBytes;  // x, if staged, follows
  // From the codes of a tile's unit to those of the next unit, and of the next tile.
  static constexpr int kUnitPitch = Unit::kCodeBytes * (Unit::kBoxed ? Shape::kTiles : 1);
  static constexpr int kTilePitch = Unit::kCodeBytes * (Unit::kBoxed ? 1 : Shape::kStageUnits);
};

// Boxes lie at multiples of this many bytes.
inline constexpr int kRingBoxAlign = 1024;
// What the launch asks for beyond the layout, so that the ring can be moved there.
template <class Unit>
inline constexpr int kRingSlackBytes = Unit::kBoxed ? kRingBoxAlign : 0;

// Bytes of a row of x in a stage, and of a resident one.
template <class Shape>
__host__ __device__ constexpr int RingStagedRowBytes() {
  return Shape::kStageUnits * kUnitXBytes + kSharedRowSkew;
}
__host__ __device__ constexpr int RingResidentRowBytes(int units) {
  return units * kUnitXBytes + kSharedRowSkew;
}

// Where the parts of the dynamic shared memory lie: table, partial sums, resident x, ring.
template <class Unit, class Shape>
struct RingLayout {
  int partial_offset;
  int x_offset;
  int ring_offset;
  int stage_bytes;

  __host__ __device__ RingLayout(int m, int units, const RingArgs& ring) {
    partial_offset = Unit::kTableBytes;
    x_offset = partial_offset + ring.partial_buffers * Shape::PartialBytes(m);
    const bool resident = !Shape::kHeldX && ring.x_resident;
    ring_offset = x_offset + (resident ? m * RingResidentRowBytes(units) : 0);
    stage_bytes = RingStage<Unit, Shape>::kBytes;
    if (!Shape::kHeldX && !ring.x_resident) stage_bytes += m * RingStagedRowBytes<Shape>();
    if (Unit::kBoxed)
      stage_bytes = (stage_bytes + kRingBoxAlign - 1) / kRingBoxAlign * kRingBoxAlign;
  }
  __host__ __device__ int Bytes(int stages) const { return ring_offset + stages * stage_bytes; }
};

// A position in the ring.
struct RingSlot {
  int stage = 0;
  uint32_t parity = 0;
  // By `count` of `stages`, count at most stages.
  __device__ void Advance(int count, int stages) {
    stage += count;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
  }
};

// What both sides of the ring need to know.
template <class Unit, class Shape>
struct Ring {
  using Layout = RingLayout<Unit, Shape>;
  const WeightView& w;
  const GemvArgs& args;
  const RingArgs& ring;
  const Layout layout;
  char* shared;
  uint64_t* full;
  uint64_t* empty;
  uint64_t* x_full;
  uint64_t* partial_full;
  uint64_t* partial_empty;
  int tiles16;
  int tiles;
  int rounds;  // units of a tile that a warp takes, at most

  __device__ Ring(const WeightView& weight, const GemvArgs& gemv, const RingArgs& ring_args,
                  char* memory, uint64_t* barriers)
      : w(weight),
        args(gemv),
        ring(ring_args),
        layout(gemv.m, weight.units, ring_args),
        shared(memory),
        full(barriers),
        empty(barriers + kRingEmptyAt),
        x_full(barriers + kRingXFullAt),
        partial_full(barriers + kRingPartialFullAt),
        partial_empty(barriers + kRingPartialEmptyAt),
        tiles16(Tiles16(weight)),
        tiles((tiles16 + Shape::kTiles - 1) / Shape::kTiles),
        rounds((weight.units + Shape::kWarps - 1) / Shape::kWarps) {
    if constexpr (Unit::kBoxed) {
      const uint32_t ring_at = SharedAddress(shared) + layout.ring_offset;
      shared += -ring_at % kRingBoxAlign;
    }
  }

  __device__ char* Stage(int stage) const {
    return shared + layout.ring_offset + stage * layout.stage_bytes;
  }
  __device__ float* Partials(int buffer) const {
    return reinterpret_cast<float*>(shared + layout.partial_offset) +
           buffer * (Shape::PartialBytes(args.m) / 4);
  }
  __device__ bool Staged() const { return !Shape::kHeldX && !ring.x_resident; }
  __device__ bool Resident() const { return !Shape::kHeldX && ring.x_resident; }
  // Resident x arrives in parts of this many rounds.
  __device__ int XPartRounds() const { return (rounds + kRingMaxParts - 1) / kRingMaxParts; }
  __device__ int XParts() const { return (rounds + XPartRounds() - 1) / XPartRounds(); }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_LAYOUT_CUH_
