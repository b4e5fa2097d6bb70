// The kernels of gemv_slots.cuh with x from one read of the L2 for a cluster of blocks: each block
// copies some rows of x into all blocks of its cluster. Every block reads all of x otherwise, which
// for 16 rows is as many bytes from the L2 as the weights of a tile, or twice as many.
//
//   x in device memory   row r by block r % cluster
//        | bulk copies to all blocks of the cluster, complete on each one's `full`
//   shared memory        [row] whole (held), or a ring of stages: [row][8 units]
//        | 16-byte loads, one lane's fragments each
//   registers            as in gemv_slots.cuh, with the same order of all sums
//
// Both run in clusters of one block, too.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_SPREAD_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_SPREAD_CUH_

#include "kernels/cuda/device/gemv_slots.cuh"
#include "kernels/cuda/device/shared_fragments.cuh"

namespace nibble::cuda {

struct SpreadArgs {
  int32_t cluster = 1;      // blocks
  int32_t x_at = 0;         // bytes, in dynamic shared memory
  int32_t x_row_bytes = 0;  // from a row to the next, of a stage where there are stages
  int32_t x_stages = 0;     // a multiple of kSpreadHalves: a stage is always the same warps'
  SlotsArgs partials;
};

inline constexpr int kSpreadMaxStages = 16;
inline constexpr int kSpreadStageUnits = 8;
inline constexpr int kSpreadHalves = kSlotsWarps / kSpreadStageUnits;  // of the warps
inline constexpr int kSpreadThreads = (kSlotsWarps + 1) * 32;

// A lane's part of the unit of x that lies at `at`, of each row.
template <class Inputs, int kColumns>
__device__ inline void LoadSharedFragments(const GemvArgs& args, uint32_t at, int row_bytes,
                                           int lane, Fragments<Inputs, kColumns>& x) {
  SharedFragments<Inputs, kColumns> from;
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int row = Fragments<Inputs, kColumns>::Row(args, column, lane);
    from.rows_at[column] = at + row * row_bytes + Inputs::Offset(lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) x.part[column][i] = from.Part(column, i);
  }
}

// x of at most kHeld units a warp, which end up in registers. The partial sums take its place in
// shared memory.
template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(kSlotsThreads, 1)
    GemvSpreadHeldKernel(const __grid_constant__ WeightView w,
                         const __grid_constant__ GemvArgs args,
                         const __grid_constant__ SpreadArgs places) {
#if __CUDA_ARCH__ >= 900
  constexpr int kColumns = Shape::kColumns;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kHeld = Shape::kHeld;
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[3];  // of each buffer of partial sums, and of x
  LaunchDependents();
  const uint32_t shared = Kept(SharedAddress(shared_words));
  Slots<Unit, Shape> slots(w, args, shared);
  const int lane = slots.lane;
  const int rounds = slots.rounds;
  const uint32_t x_full = SharedAddress(barriers + 2);
  if (threadIdx.x == 0) {
    InitBarrier(SharedAddress(barriers), kSlotsWarps * kWarpArrivals);
    InitBarrier(SharedAddress(barriers + 1), kSlotsWarps * kWarpArrivals);
    InitBarrier(x_full, 1);
    FenceBarrierInit();
    ArriveExpecting(x_full, args.m * w.units * kUnitXBytes);
  }
  slots.FillAll();
  FillTableByWarps<Pairs, Unit>(w, shared_words, slots.warp, lane);
  SyncCluster();
  WaitForDependencies();
  if (slots.warp == 0) {
    const int row = lane * places.cluster + static_cast<int>(RankInCluster());
    if (row < args.m) {
      BulkCopyToCluster(shared + places.x_at + row * places.x_row_bytes,
                        static_cast<const uint16_t*>(args.x) + row * args.x_stride,
                        w.units * kUnitXBytes, x_full,
                        static_cast<uint16_t>((1 << places.cluster) - 1));
    }
    __syncwarp();
  }
  // A block without a tile waits as well: none ends before all that is copied to it is there.
  WaitBarrierOfCluster(x_full, 0);
  Fragments<typename Unit::Inputs, kColumns> x[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int unit = slots.warp + i * kSlotsWarps;
    if (i < rounds) {
      LoadSharedFragments(args, shared + places.x_at + unit * kUnitXBytes, places.x_row_bytes, lane,
                          x[i]);
    }
  }
  __syncthreads();

  float* partials =
      reinterpret_cast<float*>(reinterpret_cast<char*>(shared_words) + places.partials.partials_at);
  int turn = 0;  // tiles of this block that are done
  const auto reduce = [&](int tile) {
    const int before = turn - 1;
    const uint32_t buffer = SharedAddress(shared_words) + places.partials.partials_at +
                            (before & 1) * places.partials.buffer_floats * 4;
    WaitBarrier(SharedAddress(barriers) + (before & 1) * 8, (before >> 1) & 1);
    slots.StoreTile(buffer, places.partials.warp_floats * 4, tile, before);
  };
  uint32_t slot = slots.own;
  float sums[kTiles][1][kColumns][4];
  int tile = blockIdx.x;
  for (; tile < slots.tiles; tile += gridDim.x) {
#pragma unroll
    for (int i = 0; i < kTiles * kColumns * 4; ++i) (&sums[0][0][0][0])[i] = 0.0f;
    const int last_tile = tile - static_cast<int>(gridDim.x);
#pragma unroll
    for (int round = 0; round < kHeld; ++round) {
      if (round < rounds) slots.template Multiply<Pairs>(shared_words, x[round], slot, sums);
      if (round == 0 && turn > 0) reduce(last_tile);
    }
    slots.StoreSums(sums, partials + (turn & 1) * places.partials.buffer_floats +
                              slots.warp * places.partials.warp_floats);
    ArriveByWarp(SharedAddress(barriers) + (turn & 1) * 8);
    ++turn;
  }
  if (turn > 0) reduce(tile - static_cast<int>(gridDim.x));
#endif
}

// x of more than kSlotsWarps units, once a tile in a ring of stages: 8 units of all rows each,
// those of half of the warps. Another warp fills it, and all blocks of a cluster go through equally
// many stages, also where the last tiles are not there. One buffer of partial sums.
template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(kSpreadThreads, 1)
    GemvSpreadKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                     const __grid_constant__ SpreadArgs places) {
#if __CUDA_ARCH__ >= 900
  constexpr int kColumns = Shape::kColumns;
  constexpr int kTiles = Shape::kTiles;
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[2 * kSpreadMaxStages + 2];
  LaunchDependents();
  const uint32_t shared = Kept(SharedAddress(shared_words));
  Slots<Unit, Shape> slots(w, args, shared);
  const int lane = slots.lane;
  const bool multiplies = slots.warp < kSlotsWarps;
  const uint32_t full = Kept(SharedAddress(barriers));
  const uint32_t empty = full + kSpreadMaxStages * 8;  // of the stage in all blocks
  const uint32_t partial_full = full + 2 * kSpreadMaxStages * 8;
  const uint32_t partial_empty = partial_full + 8;
  if (threadIdx.x == kSlotsThreads) {
    for (int stage = 0; stage < places.x_stages; ++stage) {
      InitStage(full, empty, stage, kSpreadStageUnits * places.cluster);
    }
    InitBarrier(partial_full, kSlotsWarps * kWarpArrivals);
    InitBarrier(partial_empty, kSlotsWarps * kWarpArrivals);
    FenceBarrierInit();
  }
  if (multiplies) {
    slots.FillAll();
    FillTableByWarps<Pairs, Unit>(w, shared_words, slots.warp, lane);
  }
  __syncwarp();
  SyncCluster();
  WaitForDependencies();
  const auto rank = static_cast<int>(RankInCluster());
  const int all_rounds = (w.units + kSlotsWarps - 1) / kSlotsWarps;
  const int step = static_cast<int>(gridDim.x);
  // Of the cluster's first block, which has the most.
  const int turns = (slots.tiles - (static_cast<int>(blockIdx.x) - rank) + step - 1) / step;
  const int stage_bytes = args.m * places.x_row_bytes;
  if (!multiplies) {
    const int row = lane * places.cluster + rank;
    const char* from = static_cast<const char*>(args.x) + row * args.x_stride * 2;
    const auto mask = static_cast<uint16_t>((1 << places.cluster) - 1);
    int stage = 0;
    uint32_t parity = 1;  // of the uses of a stage before the first
    const auto advance = [&] {
      if (++stage == places.x_stages) {
        stage = 0;
        parity ^= 1;
      }
    };
    for (int turn = 0; turn < turns; ++turn) {
      for (int part = 0; part < all_rounds * kSpreadHalves; ++part) {
        const int first = part * kSpreadStageUnits;
        const int units = max(0, min(kSpreadStageUnits, w.units - first));
        WaitBarrierOfCluster(empty + stage * 8, parity);
        if (lane == 0) ArriveExpecting(full + stage * 8, args.m * units * kUnitXBytes);
        __syncwarp();
        if (row < args.m && units > 0) {
          BulkCopyToCluster(shared + places.x_at + stage * stage_bytes + row * places.x_row_bytes,
                            from + int64_t{first} * kUnitXBytes, units * kUnitXBytes,
                            full + stage * 8, mask);
        }
        __syncwarp();
        advance();
      }
    }
    // This block ends only once all that others tell its barriers is there: a barrier of the
    // cluster would have to order that, and with it their stores to y.
    for (int i = 0; i < places.x_stages; ++i, advance()) WaitBarrier(empty + stage * 8, parity);
  } else {
    float* partials = reinterpret_cast<float*>(reinterpret_cast<char*>(shared_words) +
                                               places.partials.partials_at);
    const auto reduce = [&](int tile, int turn) {
      const uint32_t buffer = SharedAddress(shared_words) + places.partials.partials_at;
      WaitBarrier(partial_full, turn & 1);
      slots.StoreTile(buffer, places.partials.warp_floats * 4, tile, turn);
      ArriveByWarp(partial_empty);
    };
    int stage = slots.warp / kSpreadStageUnits;
    uint32_t parity = 0;
    uint32_t slot = slots.own;
    const uint32_t x_own =
        Kept(shared + places.x_at + slots.warp % kSpreadStageUnits * kUnitXBytes);
    float sums[kTiles][1][kColumns][4];
    for (int turn = 0; turn < turns; ++turn) {
      const int tile = static_cast<int>(blockIdx.x) + turn * step;
      const bool there = tile < slots.tiles;
#pragma unroll
      for (int i = 0; i < kTiles * kColumns * 4; ++i) (&sums[0][0][0][0])[i] = 0.0f;
      for (int round = 0; round < all_rounds; ++round) {
        WaitBarrier(full + stage * 8, parity);
        Fragments<typename Unit::Inputs, kColumns> x;
        LoadSharedFragments(args, x_own + stage * stage_bytes, places.x_row_bytes, lane, x);
        __syncwarp();
        for (int to = 0; to < places.cluster; ++to) {
          ArriveInCluster(SharedOf(empty, to) + stage * 8);
        }
        stage += kSpreadHalves;
        if (stage >= places.x_stages) {
          stage -= places.x_stages;
          parity ^= 1;
        }
        if (there && round < slots.rounds) {
          slots.template Multiply<Pairs>(shared_words, x, slot, sums);
        }
        if (round == 1 && turn > 0) reduce(tile - step, turn - 1);
      }
      if (there) {
        if (turn > 0) WaitBarrier(partial_empty, (turn - 1) & 1);
        slots.StoreSums(sums, partials + slots.warp * places.partials.warp_floats);
        ArriveByWarp(partial_full);
      }
    }
    const int last = static_cast<int>(blockIdx.x) + (turns - 1) * step;
    if (last < slots.tiles) reduce(last, turns - 1);
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_SPREAD_CUH_
