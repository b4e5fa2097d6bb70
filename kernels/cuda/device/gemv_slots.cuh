// The GEMV of 4-bit weights in which every warp feeds itself, for compute capability 9.0: its lanes
// copy the weights of the units that they multiply, 16 bytes each and without the copy engine, into
// slots of shared memory that no other warp touches. There is no producer and no barrier before the
// sums meet, and 512 threads have 128 registers each.
//
// Which warp takes which unit, and the order of all sums, are those of the ring (gemv_ring.cuh)
// with 16 multiplying warps, so a row's bits are the same, in 8 columns of x and in 16.
//
//   device memory   [tile][unit]
//        | 16-byte asynchronous copies, a group an item: one unit of one tile; kSlots items ahead
//   slots           [warp][slot]: codes | scales | zero points
//        | wait for the oldest group
//   registers       decode -> mma.m16n8k16 -> sums * scales
//        | partial sums in shared memory
//   y               sum of the warps, by all of them
//
// GemvSlotsKernel is persistent, holds x in registers, and adds the sums of a tile while it is at
// the next. It takes part in programmatic dependent launch: slots are filled before the kernels in
// front are done, x and y touched only then.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_SLOTS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_SLOTS_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/gemv.cuh"
#include "kernels/cuda/device/ring_units.cuh"

namespace nibble::cuda {

inline constexpr int kSlotsWarps = 16;
inline constexpr int kSlotsThreads = kSlotsWarps * 32;

// kColumns: groups of 8 rows of x. kTiles: tiles of 16 outputs of a block. kSlots: items on their
// way, a multiple of kTiles. kHeld: units of x in registers.
template <int kColumns_, int kTiles_, int kSlots_, int kHeld_>
struct SlotsShape {
  static constexpr int kColumns = kColumns_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kSlots = kSlots_;
  static constexpr int kHeld = kHeld_;
  static constexpr int kRows = kTiles * kUnitRows;
  static constexpr int kRoundsAhead = kSlots / kTiles;
  // Of partial sums: floats from one row of x to the next.
  static constexpr int kPartialPitch = kRows + 4;
  static_assert(kSlots % kTiles == 0);
};

// Where the parts of a slot of kUnits units lie, each part unit by unit, and which lanes copy
// scales and zero points.
template <class Unit, int kUnits = 1>
struct SlotOf {
  static constexpr int kScalesAt = kUnits * Unit::kCodeBytes;
  static constexpr int kZerosAt = kScalesAt + kUnits * Unit::kScaleBytes;
  static constexpr int kBytes = kZerosAt + kUnits * Unit::kZeroBytes;
  static constexpr int kScaleLanes = Unit::kScaleBytes / 16;  // of a unit
  static constexpr int kZeroLanes = Unit::kZeroBytes / 16;
  static constexpr int kExtraLanes = kUnits * (kScaleLanes + kZeroLanes);
  static constexpr int kPieces = Unit::kCodeBytes / 512;
  static_assert(kBytes % 16 == 0 && Unit::kCodeBytes % 512 == 0 && kExtraLanes <= 32);
};

// y[row, n] = value. By comparisons: the switch of StoreElement is a jump table, which would be
// fetched when the last sum is there.
__device__ inline void StoreOutput(const GemvArgs& args, int row, int n, float value) {
  const int64_t at = row * args.y_stride + n;
  if (args.y_type == Element::kBF16) {
    static_cast<__nv_bfloat16*>(args.y)[at] = FromFloat<__nv_bfloat16>(value);
  } else if (args.y_type == Element::kF16) {
    static_cast<__half*>(args.y)[at] = FromFloat<__half>(value);
  } else {
    static_cast<float*>(args.y)[at] = value;
  }
}

// Where the partial sums [buffer][warp][row of x][output] lie in dynamic shared memory, behind the
// table and the slots.
struct SlotsArgs {
  int32_t partials_at = 0;    // bytes
  int32_t warp_floats = 0;    // from a warp's sums to the next warp's
  int32_t buffer_floats = 0;  // from one buffer to the other
};

// A warp's slots, what it fills them with, and where its sums go.
template <class Unit, class Shape>
struct Slots {
  using Slot = SlotOf<Unit>;
  static constexpr int kRoundBytes = kSlotsWarps * Unit::kCodeBytes;
  const WeightView& w;
  const GemvArgs& args;
  const int lane;
  const int warp;
  const int tiles16;
  const int tiles;
  const int rounds;    // units that this warp takes of a tile
  const uint32_t own;  // its first slot, the lane's part in it
  // What the lane copies next, of a block's first tile of 16: codes, and scales or zero points.
  const char* codes_from;
  const char* extras_from;
  const int32_t extra_bytes;  // from a unit's to the next unit's
  int fill_tile;
  int fill_round = 0;
  int32_t part_units;  // to the next tile of 16; 0 where there is none: it is copied twice

  __device__ Slots(const WeightView& weight, const GemvArgs& gemv, uint32_t shared)
      : w(weight),
        args(gemv),
        lane(threadIdx.x % 32),
        warp(__shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0)),
        tiles16(Tiles16(weight)),
        tiles((tiles16 + Shape::kTiles - 1) / Shape::kTiles),
        rounds((weight.units - warp + kSlotsWarps - 1) / kSlotsWarps),
        own(Kept(shared + Unit::kTableBytes + warp * Shape::kSlots * Slot::kBytes + lane * 16)),
        extra_bytes(lane < Slot::kScaleLanes ? Unit::kScaleBytes : Unit::kZeroBytes),
        fill_tile(blockIdx.x) {
    const char* extras =
        lane < Slot::kScaleLanes
            ? static_cast<const char*>(weight.scales) + lane * 16
            : reinterpret_cast<const char*>(weight.zero_points) + (lane - Slot::kScaleLanes) * 16;
    const int64_t tile_units = static_cast<int64_t>(fill_tile) * Shape::kTiles * weight.units;
    codes_from =
        static_cast<const char*>(weight.codes) + lane * 16 + (tile_units + warp) * Unit::kCodeBytes;
    extras_from = extras + (tile_units + warp) * extra_bytes;
    FindPart();
  }

  __device__ void FindPart() {
    const bool whole = (fill_tile + 1) * Shape::kTiles <= tiles16;
    part_units = Shape::kTiles == 1 || whole ? w.units : 0;
  }
  __device__ bool Filling() const { return fill_round < rounds && fill_tile < tiles; }
  // One item, `ahead` rounds ahead of the round that is to be filled next; `slot` with the lane's
  // part in it.
  __device__ void Fill(int part, int ahead, uint32_t slot) const {
    const char* from = codes_from + static_cast<int64_t>(part * part_units) * Unit::kCodeBytes +
                       ahead * kRoundBytes;
#pragma unroll
    for (int piece = 0; piece < Slot::kPieces; ++piece) {
      CopyAsync16Bytes(slot + piece * 512, from + piece * 512);
    }
    if (Slot::kExtraLanes > 0 && lane < Slot::kExtraLanes) {
      CopyAsync16Bytes(slot + Slot::kScalesAt,
                       extras_from + (part * part_units + ahead * kSlotsWarps) * extra_bytes);
    }
  }
  __device__ void NextRound() {
    ++fill_round;
    codes_from += kRoundBytes;
    extras_from += kSlotsWarps * extra_bytes;
  }
  // To the next tile of the block where this one is filled.
  __device__ void NextTile() {
    if (fill_round < rounds) return;
    const int64_t tile_units = static_cast<int64_t>(gridDim.x) * Shape::kTiles * w.units;
    codes_from += tile_units * Unit::kCodeBytes - fill_round * kRoundBytes;
    extras_from += (tile_units - fill_round * kSlotsWarps) * extra_bytes;
    fill_round = 0;
    fill_tile += gridDim.x;
    FindPart();
  }
  // Before the first round.
  __device__ void FillAll() {
#pragma unroll
    for (int ahead = 0; ahead < Shape::kRoundsAhead; ++ahead) {
#pragma unroll
      for (int part = 0; part < Shape::kTiles; ++part) {
        if (Filling()) Fill(part, 0, own + (ahead * Shape::kTiles + part) * Slot::kBytes);
        EndAsyncCopyGroup();
      }
      NextRound();
      NextTile();
    }
  }
  __device__ void Load(uint32_t slot, Unit& unit) const {
    const uint32_t start = slot - lane * 16;
    unit.Load(slot, start + Slot::kScalesAt + lane / 4 * Unit::kRowScaleBytes,
              start + Slot::kZerosAt + lane / 4 * 2);
  }
  // A round of every tile, from `slot` on: moves `slot` on and fills again what it frees.
  template <class Pairs, int kColumns>
  __device__ void Multiply(const uint32_t* table,
                           const Fragments<typename Unit::Inputs, kColumns>& x, uint32_t& slot,
                           float (&sums)[Shape::kTiles][1][kColumns][4]) {
#pragma unroll
    for (int part = 0; part < Shape::kTiles; ++part) {
      WaitForAsyncCopies<Shape::kSlots - 1>();
      __syncwarp();
      Unit unit[1];
      Load(slot, unit[0]);
      __syncwarp();
      if (Filling()) Fill(part, 0, slot);
      EndAsyncCopyGroup();
      slot += Slot::kBytes;
      MultiplyUnits<Pairs, Unit, kColumns, 1, 1>(w, table, unit, x, sums[part]);
    }
    if (slot == own + Shape::kSlots * Slot::kBytes) slot = own;
    NextRound();
    NextTile();
  }

  __device__ void StoreSums(const float (&sums)[Shape::kTiles][1][Shape::kColumns][4],
                            float* to) const {
#pragma unroll
    for (int column = 0; column < Shape::kColumns; ++column) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int row = column * 8 + lane % 4 * 2 + odd;
        if (row >= args.m) continue;
        float* at = to + row * Shape::kPartialPitch + lane / 4;
#pragma unroll
        for (int part = 0; part < Shape::kTiles; ++part) {
          at[part * kUnitRows] = sums[part][0][column][odd];
          at[part * kUnitRows + 8] = sums[part][0][column][odd + 2];
        }
      }
    }
  }
  // Element [row, n] of y from the warps' sums, added in their order: the first at `from`, `pitch`
  // bytes from one to the next.
  __device__ void Store(uint32_t from, int pitch, int row, int n) const {
    float parts[kSlotsWarps];
#pragma unroll
    for (int i = 0; i < kSlotsWarps; ++i) {
      parts[i] = LoadShared1Float(from + i * pitch);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlotsWarps; ++i) sum = __fadd_rn(sum, parts[i]);
    sum = __fmul_rn(sum, Unit::kUnscale);
    if (w.bias != nullptr) sum = __fadd_rn(sum, w.bias[n]);
    StoreOutput(args, row, n, sum);
  }
  // All elements of a tile, by all multiplying warps; `turn`: tiles of the block before this one.
  // A thread's place in the tile moves on with every tile.
  __device__ void StoreTile(uint32_t from, int pitch, int tile, int turn) const {
    const int place = static_cast<int>((threadIdx.x + turn * 32) % kSlotsThreads);
    for (int index = place; index < Shape::kRows * args.m; index += kSlotsThreads) {
      const int row = index / Shape::kRows;
      const int output = index % Shape::kRows;
      const int n = tile * Shape::kRows + output;
      if (n < w.n) Store(from + (row * Shape::kPartialPitch + output) * 4, pitch, row, n);
    }
  }
};

// kReload: a warp's units are more than kHeld, and their x is loaded again, kHeld rounds ahead.
template <class Pairs, class Unit, class Shape, bool kReload>
__global__ void __launch_bounds__(kSlotsThreads, 1)
    GemvSlotsKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                    const __grid_constant__ SlotsArgs places) {
#if __CUDA_ARCH__ >= 900
  using Slot = SlotOf<Unit>;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kHeld = Shape::kHeld;
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[2];  // of each buffer of partial sums: all are there
  LaunchDependents();
  const uint32_t shared = Kept(SharedAddress(shared_words));
  Slots<Unit, Shape> slots(w, args, shared);
  if (threadIdx.x == 0) {
    InitBarrier(SharedAddress(barriers), kSlotsWarps * kWarpArrivals);
    InitBarrier(SharedAddress(barriers + 1), kSlotsWarps * kWarpArrivals);
  }
  slots.FillAll();
  static_assert(kSlotsWarps == 16);
  FillTableByWarps<Pairs, Unit>(w, shared_words, slots.warp, slots.lane);
  const int lane = slots.lane;
  const int rounds = slots.rounds;
  WaitForDependencies();
  Fragments<typename Unit::Inputs, kColumns> x[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (i < rounds) x[i].Load(args, slots.warp + i * kSlotsWarps, lane);
  }
  __syncthreads();

  float* partials =
      reinterpret_cast<float*>(reinterpret_cast<char*>(shared_words) + places.partials_at);
  int turn = 0;  // tiles of this block that are done
  // The sums of the tile before: the other warps had time to store theirs.
  const auto reduce = [&](int tile) {
    const int before = turn - 1;
    const uint32_t buffer =
        SharedAddress(shared_words) + places.partials_at + (before & 1) * places.buffer_floats * 4;
    WaitBarrier(SharedAddress(barriers) + (before & 1) * 8, (before >> 1) & 1);
    slots.StoreTile(buffer, places.warp_floats * 4, tile, before);
  };
  uint32_t slot = slots.own;
  float sums[kTiles][1][kColumns][4];
  const auto multiply = [&](const auto& x_of_round) {
    slots.template Multiply<Pairs>(shared_words, x_of_round, slot, sums);
  };
  int tile = blockIdx.x;
  for (; tile < slots.tiles; tile += gridDim.x) {
#pragma unroll
    for (int i = 0; i < kTiles * kColumns * 4; ++i) (&sums[0][0][0][0])[i] = 0.0f;
    const int last_tile = tile - static_cast<int>(gridDim.x);
    for (int base = 0; base < (kReload ? rounds : 1); base += kHeld) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int round = base + i;
        if (round < rounds) {
          multiply(x[i]);
          if constexpr (kReload) {
            const int next = round + kHeld < rounds ? round + kHeld : i;
            x[i].Load(args, slots.warp + next * kSlotsWarps, lane);
          }
        }
        if (round == 0 && rounds > 0 && turn > 0) reduce(last_tile);
      }
    }
    if (rounds == 0 && turn > 0) reduce(last_tile);
    slots.StoreSums(sums,
                    partials + (turn & 1) * places.buffer_floats + slots.warp * places.warp_floats);
    ArriveByWarp(SharedAddress(barriers) + (turn & 1) * 8);
    ++turn;
  }
  reduce(tile - static_cast<int>(gridDim.x));
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_SLOTS_CUH_
