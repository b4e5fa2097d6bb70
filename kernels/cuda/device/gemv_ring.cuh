// The GEMV of gemv.cuh for compute capability 9.0: the weights stream through shared memory.
//
// A block takes kTiles x 16 outputs and the whole K at a time. One warp produces: it bulk-copies
// the next units of every tile into a ring of stages, as far ahead as the ring is long. The others,
// kWarps of them, multiply: each takes every kWarps-th unit of K, the same of every tile, so that
// which warp takes which unit depends on K alone. The partial sums of the warps are added in their
// order by a third kind, kReducers of them, while the others go on with the next tile.
//
//   device memory   [tile][unit]  1 KB or 2 KB each
//        | bulk copies, complete on `full`
//   ring            [stage][tile][unit]: codes | scales | zero points, then rows of x if staged
//        | 16-byte loads, one lane's fragments each; arrive on `empty`
//   registers       decode -> mma.m16n8k16, x as its 8 columns -> sums * scales
//        | partial sums in shared memory; arrive on `partial_full`
//   y               sum of the warps, + bias; arrive on `partial_empty`
//
// x is held in registers for the whole launch (kHeld units a warp), lies in shared memory whole
// (resident), or comes in the stages beside its weights.
//
// The kernel takes part in programmatic dependent launch: it fills its ring before the kernels in
// front of it are done, and touches x and y only then.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/gemv.cuh"
#include "kernels/cuda/device/ring_units.cuh"

namespace nibble::cuda {

inline constexpr int kRingMaxStages = 16;
inline constexpr int kRingMaxParts = 8;  // of resident x
// Where the barriers of a block lie, after those of `full`.
inline constexpr int kRingEmptyAt = kRingMaxStages;
inline constexpr int kRingXFullAt = kRingEmptyAt + kRingMaxStages;
inline constexpr int kRingPartialFullAt = kRingXFullAt + kRingMaxParts;
inline constexpr int kRingPartialEmptyAt = kRingPartialFullAt + 2;
inline constexpr int kRingBarriers = kRingPartialEmptyAt + 2;
// Rows of x in shared memory lie this far apart modulo 128 bytes: 8 lanes of a load touch two rows.
inline constexpr int kRingRowSkew = 64;

// kColumns: groups of 8 rows of x. kTiles: tiles of 16 outputs of a block. kWarps: that multiply.
// kHeld: units of x that each of them holds, or 0. kDepth: units of each tile that it holds, 1 or
// 2: with 2 the next is loaded while one is multiplied, where few warps hide a load from each
// other.
template <int kColumns_, int kTiles_, int kWarps_, int kHeld_, int kDepth_, int kChains_>
struct RingShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kHeld = kHeld_;
  static constexpr int kDepth = kDepth_;
  static constexpr int kChains = kChains_;
  static constexpr bool kHeldX = kHeld > 0;
  // Registers are shared out by 4 warps: these fill up a multiple beside the producer.
  static constexpr int kReducers = 3;
  static constexpr int kAllThreads = (kWarps + 1 + kReducers) * 32;
  // A stage holds this many units, one for each of as many warps.
  static constexpr int kStageUnits = kWarps < 8 ? kWarps : 8;
  static constexpr int kStagesPerRound = kWarps / kStageUnits;
  // Of partial sums: floats from one row of x to the next.
  static constexpr int kPartialPitch = kTiles * kUnitRows + 4;
};

// The launch's own choices.
struct RingArgs {
  int32_t stages = 2;           // a multiple of 2: a warp waits for every other one at most
  int32_t first_stages = 1;     // filled before the loads of x are on their way
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
  return Shape::kStageUnits * kUnitInputs * 2 + kRingRowSkew;
}
__host__ __device__ constexpr int RingResidentRowBytes(int units) {
  return units * kUnitInputs * 2 + kRingRowSkew;
}

// Bytes of one buffer of partial sums [warp][row of x][output].
template <class Shape>
__host__ __device__ constexpr int RingPartialBytes(int m) {
  return Shape::kWarps * m * Shape::kPartialPitch * 4;
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
    x_offset = partial_offset + ring.partial_buffers * RingPartialBytes<Shape>(m);
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
        tiles16((weight.n + kUnitRows - 1) / kUnitRows),
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
           buffer * (RingPartialBytes<Shape>(args.m) / 4);
  }
  __device__ bool Staged() const { return !Shape::kHeldX && !ring.x_resident; }
  __device__ bool Resident() const { return !Shape::kHeldX && ring.x_resident; }
  // Resident x arrives in parts of this many rounds.
  __device__ int XPartRounds() const { return (rounds + kRingMaxParts - 1) / kRingMaxParts; }
  __device__ int XParts() const { return (rounds + XPartRounds() - 1) / XPartRounds(); }
};

// The producing warp.
template <class Unit, class Shape>
struct RingProducer {
  const Ring<Unit, Shape>& r;
  const typename Unit::Map& map;
  const int lane;
  const uint64_t once;

  // Stage `part` of a tile: its units from part * kStageUnits on, none of them where they end
  // before. A tile past the last one is left out.
  __device__ void CopyWeights(int stage, int tile, int part) const {
    constexpr int kUnits = Shape::kStageUnits;
    const int first = part * kUnits;
    const int units = max(0, min(kUnits, r.w.units - first));
    const int parts = min(Shape::kTiles, r.tiles16 - tile * Shape::kTiles);
    const uint32_t full = SharedAddress(r.full + stage);
    if constexpr (Unit::kBoxed) {
      if (lane == 0) {
        int bytes = units > 0 ? RingStage<Unit, Shape>::kBytes : 0;
        if (r.Staged()) bytes += r.args.m * units * kUnitInputs * 2;
        ArriveExpecting(full, bytes);
        if (units > 0) {
          TensorCopyUnitsOnce(SharedAddress(r.Stage(stage)), map, tile * Shape::kTiles * kUnitRows,
                              first, full, once);
        }
      }
      __syncwarp();
      return;
    }
    if (lane == 0) {
      int bytes = parts * units * (Unit::kCodeBytes + Unit::kScaleBytes + Unit::kZeroBytes);
      if (r.Staged()) bytes += r.args.m * units * kUnitInputs * 2;
      ArriveExpecting(full, bytes);
    }
    __syncwarp();
    if (lane >= parts || units == 0) return;
    const int64_t unit = static_cast<int64_t>(tile * Shape::kTiles + lane) * r.w.units + first;
    const uint32_t to = SharedAddress(r.Stage(stage));
    const auto copy = [&](const void* from, int unit_bytes, int offset) {
      BulkCopyOnce(to + offset + lane * kUnits * unit_bytes,
                   static_cast<const char*>(from) + unit * unit_bytes, units * unit_bytes, full,
                   once);
    };
    using Stage = RingStage<Unit, Shape>;
    copy(r.w.codes, Unit::kCodeBytes, 0);
    if constexpr (Unit::kScaleBytes > 0) copy(r.w.scales, Unit::kScaleBytes, Stage::kScalesAt);
    if constexpr (Unit::kZeroBytes > 0) copy(r.w.zero_points, Unit::kZeroBytes, Stage::kZerosAt);
  }

  __device__ void CopyRows(uint32_t to, int row_bytes, int first_unit, int units,
                           uint32_t barrier) const {
    for (int row = lane; row < r.args.m; row += 32) {
      const auto* from =
          static_cast<const uint16_t*>(r.args.x) + row * r.args.x_stride + first_unit * kUnitInputs;
      BulkCopy(to + row * row_bytes, from, units * kUnitInputs * 2, barrier);
    }
  }
  __device__ void CopyStagedRows(int stage, int part) const {
    const int first = part * Shape::kStageUnits;
    const int units = min(Shape::kStageUnits, r.w.units - first);
    if (units <= 0) return;
    CopyRows(SharedAddress(r.Stage(stage)) + RingStage<Unit, Shape>::kBytes,
             RingStagedRowBytes<Shape>(), first, units, SharedAddress(r.full + stage));
  }
  // In parts of whole rounds, so that the first tile need not wait for all of it.
  __device__ void CopyResidentRows() const {
    for (int part = 0; part < r.XParts(); ++part) {
      const int first = part * r.XPartRounds() * Shape::kWarps;
      const int units = min(r.XPartRounds() * Shape::kWarps, r.w.units - first);
      const uint32_t barrier = SharedAddress(r.x_full + part);
      if (lane == 0) ArriveExpecting(barrier, r.args.m * units * kUnitInputs * 2);
      __syncwarp();
      CopyRows(SharedAddress(r.shared) + r.layout.x_offset + first * kUnitInputs * 2,
               RingResidentRowBytes(r.w.units), first, units, barrier);
    }
  }

  // Fills of the ring in order; the tiles of a block are gridDim.x apart.
  __device__ int Parts() const { return r.rounds * Shape::kStagesPerRound; }
  __device__ int Fills() const {
    const int step = static_cast<int>(gridDim.x);
    return (r.tiles - static_cast<int>(blockIdx.x) + step - 1) / step * Parts();
  }
  __device__ int TileOf(int fill) const {
    return static_cast<int>(blockIdx.x) + fill / Parts() * static_cast<int>(gridDim.x);
  }
  __device__ int FirstFills() const {
    return min(min(r.ring.first_stages, r.ring.stages), Fills());
  }

  // Before x is there. Loads of x that follow many of weights wait behind them: only as many go
  // first as the latency of memory asks for.
  __device__ void Start() const {
    const int fills = FirstFills();
    for (int fill = 0; fill < fills; ++fill) CopyWeights(fill, TileOf(fill), fill % Parts());
  }

  // The rest, with x.
  __device__ void Run() const {
    const int parts = Parts();
    const int fills = Fills();
    const int ahead = min(r.ring.stages, fills);
    int fill = FirstFills();
    int tile = TileOf(fill);
    int part = fill % parts;
    const auto next = [&] {
      if (++part == parts) {
        part = 0;
        tile += gridDim.x;
      }
    };
    if (r.Resident()) CopyResidentRows();
    if (r.Staged()) {
      for (int i = 0; i < fill; ++i) CopyStagedRows(i, i % parts);
    }
    for (; fill < ahead; ++fill, next()) {
      CopyWeights(fill, tile, part);
      if (r.Staged()) CopyStagedRows(fill, part);
    }
    RingSlot slot;  // the first phase of `empty` ends with the first use of a stage
    for (; fill < fills; ++fill, next()) {
      WaitBarrier(SharedAddress(r.empty + slot.stage), slot.parity);
      CopyWeights(slot.stage, tile, part);
      if (r.Staged()) CopyStagedRows(slot.stage, part);
      slot.Advance(1, r.ring.stages);
    }
  }
};

// The reducing warps: the sums of each tile over the multiplying warps, in their order, to y.
template <class Unit, class Shape>
__device__ inline void ReducePartials(const Ring<Unit, Shape>& r, int thread) {
  constexpr int kRows = Shape::kTiles * kUnitRows;
  constexpr int kRowPitch = Shape::kPartialPitch;
  const int m = r.args.m;
  const int warp_pitch = m * kRowPitch;
  RingSlot slot;
  for (int tile = blockIdx.x; tile < r.tiles; tile += gridDim.x) {
    const float* partials = r.Partials(slot.stage);
    WaitBarrier(SharedAddress(r.partial_full + slot.stage), slot.parity);
    for (int index = thread; index < kRows * m; index += Shape::kReducers * 32) {
      const int row = index / kRows;
      const int output = index % kRows;
      const int n = tile * kRows + output;
      const float* from = partials + row * kRowPitch + output;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < Shape::kWarps; ++i) sum = __fadd_rn(sum, from[i * warp_pitch]);
      if (n >= r.w.n) continue;
      sum = __fmul_rn(sum, Unit::kUnscale);
      if constexpr (Unit::kScalesPerUnit == 0) {
        const int scale = r.w.rows_per_scale == 1 ? n : 0;
        sum = __fmul_rn(sum, static_cast<const float*>(r.w.scales)[scale]);
      }
      if (r.args.x_scales != nullptr) {
        sum = __fmul_rn(sum, r.args.x_scales[row * r.args.x_scales_stride]);
      }
      if (r.w.bias != nullptr) sum = __fadd_rn(sum, r.w.bias[n]);
      StoreElement(r.args.y, r.args.y_type, row * r.args.y_stride + n, sum);
    }
    Arrive(SharedAddress(r.partial_empty + slot.stage));
    slot.Advance(1, r.ring.partial_buffers);
  }
}

// A multiplying warp's sums of a tile to the reducers.
template <class Shape>
__device__ inline void StorePartials(const float (&sums)[Shape::kTiles][Shape::kColumns][4], int m,
                                     int lane, float* to) {
#pragma unroll
  for (int column = 0; column < Shape::kColumns; ++column) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int row = column * 8 + lane % 4 * 2 + odd;
      if (row >= m) continue;
      float* at = to + row * Shape::kPartialPitch + lane / 4;
#pragma unroll
      for (int part = 0; part < Shape::kTiles; ++part) {
        at[part * kUnitRows] = sums[part][column][odd];
        at[part * kUnitRows + 8] = sums[part][column][odd + 2];
      }
    }
  }
}

// x in shared memory, as MultiplyUnits asks for it.
template <class Inputs, int kColumns>
struct SharedFragments {
  uint32_t rows_at[kColumns];
  __device__ uint4 Part(int column, int i) const {
    return Inputs::Part([&](int at) { return LoadShared16Bytes(rows_at[column] + at); },
                        [&](int at) { return LoadShared8Bytes(rows_at[column] + at); }, i);
  }
};

// x: held in registers where Shape says so, which then holds ceil(units / kWarps) at least.
template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kAllThreads, 1)
    GemvRingKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                   const __grid_constant__ RingArgs ring_args,
                   const __grid_constant__ typename Unit::Map map) {
#if __CUDA_ARCH__ >= 900
  constexpr int kColumns = Shape::kColumns;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kDepth = Shape::kDepth;
  constexpr int kStageUnits = Shape::kStageUnits;
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[kRingBarriers];
  const Ring<Unit, Shape> ring(w, args, ring_args, reinterpret_cast<char*>(shared_words), barriers);
  const int lane = threadIdx.x % 32;
  // Known to be the same for the whole warp: branches on it need no reconvergence.
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const RingProducer<Unit, Shape> producer{ring, map, lane, EvictFirstPolicy()};
  LaunchDependents();

  if (warp == Shape::kWarps) {
    // By one lane: a fence of all of them costs the launch 1.2 us.
    if (lane == 0) {
      if constexpr (Unit::kBoxed) PrefetchMap(map);
      for (int stage = 0; stage < ring_args.stages; ++stage) {
        InitBarrier(SharedAddress(ring.full + stage), 1);
        InitBarrier(SharedAddress(ring.empty + stage), kStageUnits);
      }
      for (int part = 0; part < kRingMaxParts; ++part) {
        InitBarrier(SharedAddress(ring.x_full + part), 1);
      }
      for (int buffer = 0; buffer < 2; ++buffer) {
        InitBarrier(SharedAddress(ring.partial_full + buffer), Shape::kWarps * 32);
        InitBarrier(SharedAddress(ring.partial_empty + buffer), Shape::kReducers * 32);
      }
      FenceBarrierInit();
    }
    __syncwarp();
    producer.Start();
  }
  if (warp < Shape::kWarps) Unit::FillTable(w, shared_words, Shape::kWarps * 32);
  WaitForDependencies();
  using Held = Fragments<typename Unit::Inputs, kColumns>;
  Held x[Shape::kHeldX ? Shape::kHeld : 1];
  if constexpr (Shape::kHeldX) {
    if (warp < Shape::kWarps) {
#pragma unroll
      for (int i = 0; i < Shape::kHeld; ++i) {
        const int unit = warp + i * Shape::kWarps;
        if (unit < w.units) x[i].Load(args, unit, lane);
      }
    }
  }
  __syncthreads();
  if (warp == Shape::kWarps) {
    producer.Run();
    return;
  }
  if (warp > Shape::kWarps) {
    ReducePartials<Unit, Shape>(ring, threadIdx.x - (Shape::kWarps + 1) * 32);
    return;
  }

  // A thread's own addresses: of its part of stage 0, and of its rows of x before the first unit.
  using Stage = RingStage<Unit, Shape>;
  const int stages = Kept(ring_args.stages);
  const int stage_bytes = Kept(ring.layout.stage_bytes);
  const int of_stage = warp % kStageUnits;
  const uint32_t ring_at = Kept(SharedAddress(ring.shared)) + ring.layout.ring_offset;
  const uint32_t codes_at = Kept(ring_at + of_stage * Stage::kUnitPitch + Unit::CodesOffset(lane));
  const uint32_t scales_at = Kept(ring_at + Stage::kScalesAt + of_stage * Unit::kScaleBytes +
                                  lane / 4 * Unit::kRowScaleBytes);
  const uint32_t zeros_at = ring_at + Stage::kZerosAt + of_stage * Unit::kZeroBytes + lane / 4 * 2;
  const uint32_t full_at = Kept(SharedAddress(ring.full));
  const int partial_pitch = args.m * Shape::kPartialPitch;
  const bool staged = ring.Staged();
  uint32_t rows_at[kColumns];
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int row = Held::Row(args, column, lane);
    const uint32_t at = staged ? ring_at + RingStage<Unit, Shape>::kBytes +
                                     row * RingStagedRowBytes<Shape>() + of_stage * kUnitInputs * 2
                               : SharedAddress(ring.shared) + ring.layout.x_offset +
                                     row * RingResidentRowBytes(w.units) + warp * kUnitInputs * 2;
    rows_at[column] = Kept(at + Unit::Inputs::Offset(lane));
  }

  // A stage is taken (waited for, its weights loaded), used (with its x), and given back.
  RingSlot taken;
  RingSlot used;
  taken.stage = used.stage = warp / kStageUnits;
  const auto take = [&](Unit(&units)[kTiles], bool real) {
    const uint32_t stage = taken.stage * stage_bytes;
    WaitBarrier(full_at + taken.stage * 8, taken.parity);
    if (real) {
#pragma unroll
      for (int part = 0; part < kTiles; ++part) {
        units[part].Load(codes_at + stage + part * Stage::kTilePitch,
                         scales_at + stage + part * kStageUnits * Unit::kScaleBytes,
                         zeros_at + stage + part * kStageUnits * Unit::kZeroBytes);
      }
    }
    taken.Advance(Shape::kStagesPerRound, stages);
  };
  const auto give_back = [&] {
    __syncwarp();
    if (lane == 0) Arrive(full_at + (kRingEmptyAt + used.stage) * 8);
    used.Advance(Shape::kStagesPerRound, stages);
  };
  float sums[kTiles][kColumns][4];
  const int rounds = Kept(ring.rounds);
  const int my_rounds = Kept((w.units - warp + Shape::kWarps - 1) / Shape::kWarps);
  const int turns = Shape::kHeldX ? Shape::kHeld : (rounds + kDepth - 1) / kDepth * kDepth;
  Unit units[kDepth][kTiles];
  if constexpr (kDepth == 2) take(units[0], my_rounds > 0);
  RingSlot partial;
  bool first = true;
  for (int tile = blockIdx.x; tile < ring.tiles; tile += gridDim.x) {
#pragma unroll
    for (int i = 0; i < kTiles * kColumns * 4; ++i) (&sums[0][0][0])[i] = 0.0f;
    const bool last = tile + gridDim.x >= ring.tiles;
    // With a depth of 2 the two sets of registers take turns, across tiles too: while `now` is
    // multiplied `next` is loaded. A tile has an even number of turns, so that it is known which is
    // which; some may be no rounds.
    const auto turn = [&](int round, Unit(&now)[kTiles], Unit(&next)[kTiles], const Held& held) {
      const int next_round = round + 1 == turns ? 0 : round + 1;
      if (kDepth == 1 && round < rounds) take(now, round < my_rounds);
      if (!staged && round < rounds) give_back();
      if (kDepth == 2 && next_round < rounds && (next_round > 0 || !last)) {
        take(next, next_round < my_rounds);
      }
      if constexpr (Shape::kHeldX) {
        if (round < my_rounds) {
          MultiplyUnits<Pairs, Unit, kColumns, kTiles, Shape::kChains>(w, shared_words, now, held,
                                                                       sums);
        }
      } else {
        if (round < my_rounds) {
          if (!staged && first) {
            WaitBarrier(SharedAddress(ring.x_full + round / ring.XPartRounds()), 0);
          }
          const uint32_t offset =
              staged ? used.stage * stage_bytes : round * Shape::kWarps * kUnitInputs * 2;
          SharedFragments<typename Unit::Inputs, kColumns> fragments;
#pragma unroll
          for (int column = 0; column < kColumns; ++column) {
            fragments.rows_at[column] = rows_at[column] + offset;
          }
          MultiplyUnits<Pairs, Unit, kColumns, kTiles, Shape::kChains>(w, shared_words, now,
                                                                       fragments, sums);
        }
        if (staged && round < rounds) give_back();
      }
    };
    if constexpr (Shape::kHeldX) {
#pragma unroll
      for (int round = 0; round < Shape::kHeld; ++round) {
        turn(round, units[round % kDepth], units[(round + 1) % kDepth], x[round]);
      }
    } else {
      for (int round = 0; round < turns; round += kDepth) {
        turn(round, units[0], units[kDepth - 1], x[0]);
        if constexpr (kDepth == 2) turn(round + 1, units[1], units[0], x[0]);
      }
    }
    first = false;
    // The first phase of `partial_empty` ends with the first use of a buffer.
    WaitBarrier(full_at + (kRingPartialEmptyAt + partial.stage) * 8, partial.parity ^ 1);
    StorePartials<Shape>(sums, args.m, lane, ring.Partials(partial.stage) + warp * partial_pitch);
    Arrive(full_at + (kRingPartialFullAt + partial.stage) * 8);
    partial.Advance(1, ring_args.partial_buffers);
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_
