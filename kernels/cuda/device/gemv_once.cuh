// The GEMV of gemv_slots.cuh for a weight of at most one tile of 32 outputs a multiprocessor and of
// 4096 inputs: a block asks for all of its weights at once and takes few enough registers and bytes
// of shared memory that the blocks of two launches fit a multiprocessor. With programmatic
// dependent launch the next launch's weights come while this one multiplies.
//
//   multiprocessor   | launch i: weights | x | multiply | y |
//                          | launch i + 1: weights | wait       | x | multiply | y |
//                                                       | launch i + 2: weights ...
//
// x lies in shared memory, each warp's own units. Bits are those of the ring.
//
// The grid is one block a multiprocessor, so that no two blocks of a launch share one while another
// has none. Those without a tile hold their place for as long as the others: they multiply what
// happens to lie in their slots, and store nothing. Blocks that leave early are places for two
// blocks of a later launch on one multiprocessor (H200, INT4 4096x4096, 1 row: 3.98 us against
// 3.66).
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_ONCE_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_ONCE_CUH_

#include "kernels/cuda/device/gemv_slots.cuh"
#include "kernels/cuda/device/shared_fragments.cuh"

namespace nibble::cuda {

inline constexpr int kOnceRounds = 2;  // units that a warp takes at most
using OnceShape = SlotsShape<1, 2, kOnceRounds * 2, kOnceRounds>;

// Where x lies in dynamic shared memory, behind the slots: [warp][unit][row of x].
struct OnceArgs {
  int32_t x_at = 0;         // bytes
  int32_t x_units = 0;      // of a warp
  int32_t x_row_bytes = 0;  // from a row of a unit to the next
};

// A 64-bit address as something the compiler keeps, as Kept does: ready before a wait.
template <class T>
__device__ inline const T* KeptPointer(const T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

__device__ inline uint4 LoadGlobal16Bytes(const void* from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// Up to 8 rows of x.
template <class Pairs, class Unit>
__global__ void __launch_bounds__(kSlotsThreads, 2)
    GemvOnceKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                   const __grid_constant__ OnceArgs places) {
#if __CUDA_ARCH__ >= 900
  using Shape = OnceShape;
  using Slot = SlotOf<Unit>;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kChunks = kUnitXBytes / 16;  // of a row of a unit of x
  constexpr int kOwnBytes = Shape::kSlots * Slot::kBytes;
  static_assert(Unit::kTableBytes == 0);
  extern __shared__ __align__(128) uint32_t shared_words[];
  LaunchDependents();
  const uint32_t shared = Kept(SharedAddress(shared_words));
  Slots<Unit, Shape> slots(w, args, shared);
  const int tile = blockIdx.x;
  const int lane = slots.lane;
  const int rounds = slots.rounds;
  if (tile < slots.tiles) {
#pragma unroll
    for (int round = 0; round < kOnceRounds; ++round) {
#pragma unroll
      for (int part = 0; part < kTiles; ++part) {
        if (round < rounds) {
          slots.Fill(part, round, slots.own + (round * kTiles + part) * Slot::kBytes);
        }
        EndAsyncCopyGroup();
      }
    }
  }

  const int x_row_bytes = places.x_row_bytes;
  const int x_unit_bytes = args.m * x_row_bytes;
  const uint32_t x_own = Kept(shared + places.x_at + slots.warp * places.x_units * x_unit_bytes);
  // A lane copies 16 bytes of every other row of a unit, from this one on.
  const int copied_row = lane / kChunks;
  const uint32_t x_to = Kept(x_own + copied_row * x_row_bytes + lane % kChunks * 16);
  const char* x_from =
      KeptPointer(static_cast<const char*>(args.x) + copied_row * args.x_stride * 2 +
                  slots.warp * kUnitXBytes + lane % kChunks * 16);
  constexpr int kRoundXBytes = kSlotsWarps * kUnitXBytes;
  const uint32_t x_row =
      Kept(x_own + min(lane / 4, args.m - 1) * x_row_bytes + Unit::Inputs::Offset(lane));
  WaitForDependencies();
  if (args.m <= 2) {
    // Through registers: a group of copies would come behind those of all weights.
    uint4 x[kOnceRounds];
#pragma unroll
    for (int round = 0; round < kOnceRounds; ++round) {
      if (round < rounds && copied_row < args.m) {
        x[round] = LoadGlobal16Bytes(x_from + round * kRoundXBytes);
      }
    }
#pragma unroll
    for (int round = 0; round < kOnceRounds; ++round) {
      if (round < rounds && copied_row < args.m) {
        StoreShared16Bytes(x_to + round * x_unit_bytes, x[round]);
      }
    }
  } else {
#pragma unroll
    for (int round = 0; round < kOnceRounds; ++round) {
      if (round >= rounds) continue;
#pragma unroll 1
      for (int row = copied_row; row < args.m; row += 2) {
        CopyAsync16Bytes(x_to + round * x_unit_bytes + (row - copied_row) * x_row_bytes,
                         x_from + (row - copied_row) * args.x_stride * 2 + round * kRoundXBytes);
      }
    }
    WaitForAsyncCopies<0>();
  }

  float sums[kTiles][1][1][4] = {};
  uint32_t slot = slots.own;
  SharedFragments<typename Unit::Inputs, 1> fragments;
  fragments.rows_at[0] = x_row;
  // Not unrolled: registers are few.
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int part = 0; part < kTiles; ++part) {
      WaitForAsyncCopies<Shape::kSlots - 1>();
      __syncwarp();
      Unit unit[1];
      slots.Load(slot, unit[0]);
      EndAsyncCopyGroup();  // of nothing: the next item is then the oldest but kSlots - 1
      slot += Slot::kBytes;
      MultiplyUnits<Pairs, Unit, 1, 1, 1>(w, shared_words, unit, fragments, sums[part]);
    }
    fragments.rows_at[0] += x_unit_bytes;
  }
  // Into the warp's own slots: all lanes have loaded from them.
  __syncwarp();
  char* partials = reinterpret_cast<char*>(shared_words);
  slots.StoreSums(sums, reinterpret_cast<float*>(partials + slots.warp * kOwnBytes));
  static_assert(Shape::kRows == 32 && kSlotsWarps >= 8);  // a warp adds a row
  const int row = slots.warp;
  const int n = tile * Shape::kRows + lane;
  const uint32_t from = Kept(shared + (row * Shape::kPartialPitch + lane) * 4);
  __syncthreads();
  if (row < args.m && n < w.n) slots.Store(from, kOwnBytes, row, n);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_ONCE_CUH_
