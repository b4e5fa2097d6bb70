// The GEMV of 4-bit weights that adds in the order of gemm_wgmma_cluster.cuh: each half of K is
// dealt to of_half chains, unit by unit, and a warp adds a whole chain of a tile of 16 outputs.
// With units of half_words.cuh a row's bits are those of that kernel; with units as they are packed
// it loads less, and its bits are its own.
//
//   block           [tile of 16 outputs][chain of both halves] warps, and a warp for x of each half
//
//   device memory   units of a warp's chain          x, in parts of chain_units units a chain
//        | asynchronous copies, a group a unit            | bulk copies, a row of a part each
//   slots           [warp][2]: codes | scales |      stages   [half][stage][row]
//                   zero points
//        |                                                |
//   registers       decode -> mma.m16n8k16 -> sums * scales, unit by unit
//        | totals in shared memory, where the warp's slots were; the warps of a tile meet
//   y               ((p0 + p1) + p2) + p3 of each half, half 0 + half 1
//
// Both weights on their way and room for other blocks make it slower. A warp asks for two units
// before x is there, and for one more with each that it has loaded: what lies ahead of x in the
// memory system x waits for. And a block has a multiprocessor for itself (kStreamAloneBytes): where
// two fit, those of the next launch come to those that are done first, by two, while others wait
// (H200, INT4 6144x4096, 1 row: 6.4 us against 5.3).
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_STREAM_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_STREAM_CUH_

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/gemv_slots.cuh"
#include "kernels/cuda/device/output_factors.cuh"

namespace nibble::cuda {

inline constexpr int kStreamSlots = 2;                     // of a warp
inline constexpr int kStreamStages = 14;                   // of a half, at most
inline constexpr int kStreamThreads = kSlotsThreads + 64;  // with those that copy x, at most
inline constexpr int kStreamSumsPitch = kUnitRows + 4;     // floats from a row of x to the next
// Of shared memory, more than half of what a multiprocessor has.
inline constexpr int kStreamAloneBytes = 116 * 1024;

struct StreamArgs {
  int32_t of_half_shift = 0;  // log2 of the chains of a half: 1, 2 or 4
  int32_t tiles = 1;          // of a block
  int32_t chain_units = 1;    // of a part of x
  int32_t stages = 1;         // of a half
  int32_t x_at = 0;           // bytes, in dynamic shared memory
  int32_t x_row_bytes = 0;    // from a row of a part to the next
  int32_t stage_bytes = 0;
};

// Meets other warps, `threads` threads in all, or lets them know alone.
__device__ inline void MeetWarps(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void ArriveAtWarps(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// What a warp adds: a chain of a tile.
struct StreamWork {
  int lane;
  int warp;
  int shift;      // log2 of the chains of a half
  int part;       // tile of the block
  int chain;      // of both halves
  int32_t tile;   // of the weight
  int32_t half;   // of K
  int32_t first;  // unit, then every (1 << shift)-th
  int32_t count;  // of units
  bool stored;    // the weight has the tile

  __device__ StreamWork(const WeightView& w, const StreamArgs& places, int32_t block_tile)
      : lane(static_cast<int>(Kept(threadIdx.x % 32))),
        warp(__shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0)),
        shift(places.of_half_shift),
        part(warp >> (shift + 1)),
        chain(warp & ((2 << shift) - 1)),
        tile(block_tile + part),
        half(chain >> shift) {
    const int32_t of_half = 1 << shift;
    first = (half == 0 ? 0 : w.units / 2) + (chain & (of_half - 1));
    const int32_t end = half == 0 ? w.units / 2 : w.units;
    count = max(0, (end - first + of_half - 1) >> shift);
    stored = tile * kUnitRows < w.n;
  }
};

// A warp's slots: `own` is the first, filled and emptied in turn.
template <class Unit>
struct StreamSlots {
  using Slot = SlotOf<Unit>;
  static constexpr int kBytes = kStreamSlots * Slot::kBytes;
  const StreamWork& work;
  const uint32_t own;
  const char* codes_from;
  const char* extras_from;  // scales or zero points
  int32_t extra_bytes;
  int32_t left;  // units that are not asked for
  uint32_t slot;

  __device__ StreamSlots(const WeightView& w, const StreamWork& of_warp, uint32_t first_slot)
      : work(of_warp), own(first_slot), left(of_warp.stored ? of_warp.count : 0), slot(first_slot) {
    const int lane = work.lane;
    const int64_t unit = static_cast<int64_t>(work.tile) * w.units + work.first;
    const bool of_scales = lane < Slot::kScaleLanes;
    extra_bytes = of_scales ? Unit::kScaleBytes : Unit::kZeroBytes;
    codes_from = static_cast<const char*>(w.codes) + unit * Unit::kCodeBytes + lane * 16;
    extras_from = (of_scales ? static_cast<const char*>(w.scales) + lane * 16
                             : reinterpret_cast<const char*>(w.zero_points) +
                                   (lane - Slot::kScaleLanes) * 16) +
                  unit * extra_bytes;
  }
  // The chain's next unit, where there is one, to the slot at `to`; and the end of its group.
  __device__ void Fill(uint32_t to) {
    if (left > 0) {
      const uint32_t at = to + work.lane * 16;
#pragma unroll
      for (int piece = 0; piece < Slot::kPieces; ++piece) {
        CopyAsync16Bytes(at + piece * 512, codes_from + piece * 512);
      }
      if (work.lane < Slot::kExtraLanes) CopyAsync16Bytes(at + Slot::kScalesAt, extras_from);
      codes_from += Unit::kCodeBytes << work.shift;
      extras_from += extra_bytes << work.shift;
      --left;
    }
    EndAsyncCopyGroup();
  }
  __device__ void FillAll() {
#pragma unroll
    for (int i = 0; i < kStreamSlots; ++i) Fill(own + i * Slot::kBytes);
  }
  // The oldest unit, whose slot is filled again.
  __device__ Unit Next(uint32_t codes_at, uint32_t scales_at, uint32_t zeros_at) {
    WaitForAsyncCopies<kStreamSlots - 1>();
    __syncwarp();
    Unit unit;
    unit.Load(slot + codes_at, slot + scales_at, slot + zeros_at);
    __syncwarp();
    Fill(slot);
    slot += Slot::kBytes;
    if (slot == own + kBytes) slot = own;
    return unit;
  }
};

// What a warp copies: x of a half, a lane a row.
__device__ inline void StreamX(const WeightView& w, const GemvArgs& args, const StreamArgs& places,
                               int32_t half, int lane, uint32_t to, uint32_t full, uint32_t empty) {
  if (lane >= args.m) return;
  int32_t left = half == 0 ? w.units / 2 : w.units - w.units / 2;
  const auto* from = static_cast<const uint16_t*>(args.x) + lane * args.x_stride +
                     static_cast<int64_t>(half == 0 ? 0 : w.units / 2) * kUnitInputs;
  const int32_t part = places.chain_units << places.of_half_shift;
  to += lane * places.x_row_bytes;
  int stage = 0;
  uint32_t parity = 1;
#pragma unroll 1
  for (; left > 0; left -= part) {
    WaitBarrier(empty + stage * 8, parity);
    const uint32_t bytes = min(part, left) * kUnitXBytes;
    ArriveExpecting(full + stage * 8, bytes);
    BulkCopy(to + stage * places.stage_bytes, from, bytes, full + stage * 8);
    from += part * kUnitInputs;
    if (++stage == places.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// A lane's x of a unit, whole before the unit is waited for. Lanes whose row is not there have
// zeros: their sums are not stored, and half a warp that reads nothing takes no turn of the shared
// memory.
template <class Unit>
struct StreamedX {
  bool is_there;
  uint4 parts[4] = {};

  __device__ void Load(uint32_t at) {
    if (!is_there) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      parts[i] = Unit::Inputs::Part([at](int offset) { return LoadShared16Bytes(at + offset); },
                                    [at](int offset) { return LoadShared8Bytes(at + offset); }, i);
    }
  }
};

// sums += the products of a unit and of x.
template <class Pairs, class Unit>
__device__ inline void MultiplyStreamed(const WeightView& w, const uint32_t* table,
                                        const Unit& unit, const StreamedX<Unit>& x,
                                        float (&sums)[4]) {
  constexpr int kScales = Unit::kScalesPerUnit;
  float products[kScales][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    MultiplyPart<Pairs>(w, table, unit, i, x.parts[i], products[i * kScales / 4]);
  }
#pragma unroll
  for (int group = 0; group < kScales; ++group) {
    AddScaled(unit.Scale(w, group), products[group], sums);
  }
}

// An element of y before its factors: the sums of its chains, the first at `from`, warp_bytes
// apart.
template <int kOfHalf>
__device__ inline float AddHalves(uint32_t from, int warp_bytes) {
  float parts[2][kOfHalf];
#pragma unroll
  for (int i = 0; i < 2 * kOfHalf; ++i) {
    parts[i / kOfHalf][i % kOfHalf] = LoadShared1Float(from + i * warp_bytes);
  }
  float halves[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    halves[half] = parts[half][0];
#pragma unroll
    for (int i = 1; i < kOfHalf; ++i) halves[half] = __fadd_rn(halves[half], parts[half][i]);
  }
  return __fadd_rn(halves[0], halves[1]);
}

// y of a tile from the sums of its warps, by all of them. `own`: the warp's slots, which nothing
// else reads or fills.
template <class Unit>
__device__ inline void StoreStreamed(const WeightView& w, const GemvArgs& args,
                                     const StreamWork& work, const float (&sums)[4], uint32_t own) {
  constexpr int kWarpBytes = StreamSlots<Unit>::kBytes;
  static_assert(kWarpBytes >= 8 * kStreamSumsPitch * 4);
  const int lane = work.lane;
  const int chains = 2 << work.shift;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane % 4 * 2 + i % 2;
    const int output = lane / 4 + i / 2 * 8;
    StoreShared1Float(own + (row * kStreamSumsPitch + output) * 4, sums[i]);
  }
  MeetWarps(1 + work.part, chains * 32);
  const uint32_t of_tile = own - work.chain * kWarpBytes;
#pragma unroll 1
  for (int index = work.chain * 32 + lane; index < args.m * kUnitRows; index += chains * 32) {
    const int row = index / kUnitRows;
    const int32_t n = work.tile * kUnitRows + index % kUnitRows;
    if (n >= w.n) continue;
    const auto factors = OutputFactors::Of<Unit>(w, n);
    const uint32_t from = of_tile + (row * kStreamSumsPitch + index % kUnitRows) * 4;
    const float sum = work.shift == 2   ? AddHalves<4>(from, kWarpBytes)
                      : work.shift == 1 ? AddHalves<2>(from, kWarpBytes)
                                        : AddHalves<1>(from, kWarpBytes);
    StoreElement(args.y, args.y_type, row * args.y_stride + n, factors.Finish(sum));
  }
}

// Up to 8 rows of x.
template <class Pairs, class Unit>
__global__ void __launch_bounds__(kStreamThreads, 1)
    GemvStreamKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                     const __grid_constant__ StreamArgs places) {
#if __CUDA_ARCH__ >= 900
  using Slot = SlotOf<Unit>;
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[2][2][kStreamStages];  // [half][full, empty]
  LaunchDependents();
  const int32_t block_tile = static_cast<int32_t>(blockIdx.x) * places.tiles;
  if (block_tile * kUnitRows >= w.n) {
    WaitForDependencies();
    return;
  }
  const uint32_t shared = Kept(SharedAddress(shared_words));
  const StreamWork work(w, places, block_tile);
  const int lane = work.lane;
  const int warps = places.tiles << (work.shift + 1);  // that multiply
  const int threads = (warps + 2) * 32;
  const bool copies = work.warp >= warps;
  const int32_t half = copies ? work.warp - warps : work.half;
  const uint32_t full = Kept(SharedAddress(barriers) + half * 2 * kStreamStages * 8);
  const uint32_t empty = full + kStreamStages * 8;
  const uint32_t x_base = shared + places.x_at + half * places.stages * places.stage_bytes;
  if (copies) {
    if (lane == 0) {
      const int32_t tiles = min(places.tiles, Tiles16(w) - block_tile);
      for (int stage = 0; stage < places.stages; ++stage) {
        InitBarrier(full + stage * 8, args.m);
        InitBarrier(empty + stage * 8, (tiles << work.shift) * kWarpArrivals);
      }
      FenceBarrierInit();
    }
    __syncwarp();
    ArriveAtWarps(0, threads);
    WaitForDependencies();
    StreamX(w, args, places, half, lane, x_base, full, empty);
    return;
  }
  const uint32_t own = Kept(shared + Unit::kTableBytes + work.warp * StreamSlots<Unit>::kBytes);
  StreamSlots<Unit> slots(w, work, own);
  slots.FillAll();
  if constexpr (Unit::kTableBytes > 0) {
    for (int low = work.warp; low < 16; low += warps) {
      FillTableByWarps<Pairs, Unit>(w, shared_words, low, lane);
    }
  }
  MeetWarps(0, threads);
  if (!work.stored) return;

  const uint32_t codes_at = Unit::CodesOffset(lane);
  const uint32_t scales_at = Slot::kScalesAt + lane / 4 * Unit::kRowScaleBytes;
  const uint32_t zeros_at = Slot::kZerosAt + lane / 4 * 2;
  const uint32_t x_lane =
      Kept(x_base + (work.chain & ((1 << work.shift) - 1)) * kUnitXBytes +
           min(lane / 4, args.m - 1) * places.x_row_bytes + Unit::Inputs::Offset(lane));
  const int32_t x_unit = kUnitXBytes << work.shift;
  StreamedX<Unit> x;
  x.is_there = lane / 4 < args.m;
  float sums[4] = {};
  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int32_t at = 0; at < work.count;) {
    WaitBarrier(full + stage * 8, parity);
    uint32_t x_at = x_lane + stage * places.stage_bytes;
    const int32_t end = min(at + places.chain_units, work.count);
#pragma unroll 1
    for (; at < end; ++at) {
      x.Load(x_at);
      const Unit unit = slots.Next(codes_at, scales_at, zeros_at);
      MultiplyStreamed<Pairs>(w, shared_words, unit, x, sums);
      x_at += x_unit;
    }
    ArriveByWarp(empty + stage * 8);
    if (++stage == places.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // All lanes have loaded from the slots: they have met.
  StoreStreamed<Unit>(w, args, work, sums, own);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_STREAM_CUH_
