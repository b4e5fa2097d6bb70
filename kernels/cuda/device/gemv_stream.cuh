// The GEMV of 4-bit weights that adds in the order of gemm_wgmma_cluster.cuh: each half of K is
// dealt to of_half chains, unit by unit, and a warp adds a whole chain of a tile of 16 outputs.
// With units of half_words.cuh a row's bits are those of that kernel; with units as they are packed
// it loads less, and its bits are its own.
//
//   block           [tile of 16 outputs][chain of both halves] warps, and a warp for x of each half
//
//   device memory   units of a warp's chain          x, in parts of two units a chain
//        | asynchronous copies, a group a unit            | the same, 16 bytes a lane; of one row
//        |                                                | a bulk copy a part
//   slots           [warp][2]: codes | scales |      stages   [half][stage][row], swizzled
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

#include "kernels/cuda/device/stream_chains.cuh"

namespace nibble::cuda {

inline constexpr int kStreamMostOfHalf = 4;                // chains of a half of K
inline constexpr int kStreamStages = 14;                   // of a half, at most
inline constexpr int kStreamThreads = kSlotsThreads + 64;  // with those that copy x, at most
// Of shared memory, more than half of what a multiprocessor has.
inline constexpr int kStreamAloneBytes = 116 * 1024;

struct StreamArgs {
  int32_t of_half_shift = 0;  // log2 of the chains of a half: 1, 2 or 4
  int32_t tiles = 1;          // of a block
  int32_t stages = 1;         // of a half
  int32_t x_at = 0;           // bytes, in dynamic shared memory; a multiple of 128
  int32_t x_row_bytes = 0;    // from a row of a part to the next
  int32_t stage_bytes = 0;
};

// What a warp copies: x of a half, 16 bytes a lane; of one row, which lies as it comes, a lane
// copies it in bulk.
template <class Unit>
struct StreamX {
  // Of a row of a part, at most.
  static constexpr int kRuns = kStreamSlots * kStreamMostOfHalf * kUnitXBytes / 512;
  const int lane;
  const int rows;
  const int part_bytes;  // of a row
  const int stages;
  const uint32_t stage_bytes;
  const uint32_t row_bytes;  // from a row of a part to the next
  const int64_t row_step;
  const uint32_t to;
  const char* from;
  int left;  // bytes of a row

  __device__ StreamX(const WeightView& w, const GemvArgs& args, const StreamArgs& places,
                     int32_t half, int of_warp, uint32_t first_stage)
      : lane(of_warp),
        rows(args.m),
        part_bytes(kUnitXBytes * kStreamSlots << places.of_half_shift),
        stages(places.stages),
        stage_bytes(places.stage_bytes),
        row_bytes(places.x_row_bytes),
        row_step(args.x_stride * 2),
        to(Kept(first_stage + of_warp * 16)),
        from(KeptPointer(static_cast<const char*>(args.x) + of_warp * 16 +
                         static_cast<int64_t>(half == 0 ? 0 : w.units / 2) * kUnitXBytes)),
        left((half == 0 ? w.units / 2 : w.units - w.units / 2) * kUnitXBytes) {}
  // At a stage's full barrier.
  __device__ static int Arrivals(int rows) { return rows == 1 ? 1 : 32; }

  // Waits for the kernels before. What the first copies need is ready by then: it is on the other
  // side of a branch.
  template <class Copy>
  __device__ void CopyParts(uint32_t full, uint32_t empty, const Copy& copy) {
    int bytes = static_cast<int>(Kept(min(part_bytes, left)));
    if (bytes == 0) return;
    WaitForDependencies();
    uint32_t at = to;
    int stage = 0;
    uint32_t parity = 1;
#pragma unroll 1
    while (true) {
      copy(at, bytes, full + stage * 8);
      // Warps that have no unit of the last part do not give it back.
      left -= part_bytes;
      if (left <= 0) return;
      bytes = min(part_bytes, left);
      from += part_bytes;
      at += stage_bytes;
      if (++stage == stages) {
        stage = 0;
        at = to;
        parity ^= 1;
      }
      WaitBarrier(empty + stage * 8, parity);
    }
  }
  __device__ void CopyAll(uint32_t full, uint32_t empty) {
    if (rows == 1) {
      if (lane > 0) return;
      CopyParts(full, empty, [this](uint32_t at, int bytes, uint32_t stage_full) {
        ArriveExpecting(stage_full, bytes);
        BulkCopy(at, from, bytes, stage_full);
      });
      return;
    }
    CopyParts(full, empty, [this](uint32_t at, int bytes, uint32_t stage_full) {
      const int lane_bytes = bytes - lane * 16;
      const char* from_row = from;
      int row = 0;
#pragma unroll 1
      do {
        const uint32_t row_at = at ^ StreamSwizzle<Unit>(row);
#pragma unroll
        for (int run = 0; run < kRuns; ++run) {
          if (run * 512 < lane_bytes) CopyAsync16Bytes(row_at + run * 512, from_row + run * 512);
        }
        at += row_bytes;
        from_row += row_step;
      } while (++row < rows);
      ArriveAfterAsyncCopies(stage_full);
    });
    WaitForAsyncCopies<0>();
  }
};

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
  const StreamWork work(w, places.of_half_shift, block_tile);
  const int lane = work.lane;
  const int warps = places.tiles << (work.shift + 1);  // that multiply
  const int threads = (warps + 2) * 32;
  const bool copies = work.warp >= warps;
  const int32_t half = copies ? work.warp - warps : work.half;
  const uint32_t full = Kept(SharedAddress(barriers) + half * 2 * kStreamStages * 8);
  const uint32_t empty = full + kStreamStages * 8;
  const uint32_t x_base = shared + places.x_at + half * places.stages * places.stage_bytes;
  if (copies) {
    StreamX<Unit> x(w, args, places, half, lane, x_base);
    if (lane == 0) {
      const int32_t tiles = min(places.tiles, Tiles16(w) - block_tile);
      for (int stage = 0; stage < places.stages; ++stage) {
        InitBarrier(full + stage * 8, StreamX<Unit>::Arrivals(args.m));
        InitBarrier(empty + stage * 8, (tiles << work.shift) * kWarpArrivals);
      }
      FenceBarrierInit();
    }
    __syncwarp();
    ArriveAtWarps(0, threads);
    x.CopyAll(full, empty);
    return;
  }
  const uint32_t own = Kept(shared + Unit::kTableBytes + work.warp * StreamSlots<Unit>::kBytes);
  StreamSlots<Unit> slots(w, work, own);
  slots.FillAll(work.stored ? work.count : 0);
  if constexpr (Unit::kTableBytes > 0) {
    for (int low = work.warp; low < 16; low += warps) {
      FillTableByWarps<Pairs, Unit>(w, shared_words, low, lane);
    }
  }
  MeetWarps(0, threads);
  if (!work.stored) return;

  slots.KeepSteps();
  const StreamPlaces<Unit> of_lane(lane, own);
  const int x_row = min(lane / 4, args.m - 1);
  const uint32_t x_lane = Kept(x_base + (work.chain & ((1 << work.shift) - 1)) * kUnitXBytes +
                               x_row * places.x_row_bytes + StreamedX<Unit>::Offset(lane, x_row));
  // Of the units of a turn.
  uint32_t x_places[kStreamSlots][StreamedX<Unit>::kPlaces];
#pragma unroll
  for (int i = 0; i < kStreamSlots; ++i) {
    const uint32_t first = x_lane + i * (kUnitXBytes << work.shift);
#pragma unroll
    for (int place = 0; place < StreamedX<Unit>::kPlaces; ++place) {
      x_places[i][place] = Kept(StreamedX<Unit>::Place(first, place));
    }
  }
  StreamedX<Unit> x;
  x.is_there = lane / 4 < args.m;
  float sums[4] = {};
  uint32_t stage_full = full;
  uint32_t stage_at = 0;
  uint32_t parity = 0;
  // Units of the chain behind those of this turn; -1: this turn has one unit.
  auto behind = static_cast<int32_t>(Kept(work.count - kStreamSlots));
  // A turn is a part of x and all slots: places of units are constants of the instructions.
#pragma unroll 1
  for (; behind > -kStreamSlots; behind -= kStreamSlots) {
    WaitBarrier(stage_full, parity);
#pragma unroll
    for (int i = 0; i < kStreamSlots; ++i) {
      if (i > 0 && behind <= i - kStreamSlots) break;
      x.Load([at = x_places[i], stage_at](int place) { return at[place] + stage_at; });
      const Unit unit = of_lane.template Oldest<kStreamSlots>(i * Slot::kBytes);
      __syncwarp();
      slots.Fill(i, behind > i);
      MultiplyStreamed<Pairs>(w, shared_words, unit, x, sums);
    }
    ArriveByWarp(stage_full + kStreamStages * 8);
    stage_full += 8;
    stage_at += places.stage_bytes;
    if (stage_full == full + places.stages * 8) {
      stage_full = full;
      stage_at = 0;
      parity ^= 1;
    }
  }
  // All lanes have loaded from the slots: they have met.
  StreamOutput<Unit, StreamSlots<Unit>::kBytes>(w, args, work, own).Store(args, sums);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_STREAM_CUH_
