// The GEMV of gemv.cuh with the weights on their way through a ring of slots in shared memory: more
// bytes in flight than registers hold, and none of a warp's registers waiting for memory. A lane
// reads only what it copied itself, so the ring needs no barrier. For GPUs with about 200 KB of
// shared memory a block. Sums have the order of GemvKernel: both give the same bits.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_

#include "kernels/cuda/device/gemv.cuh"

namespace nibble::cuda {

template <class Unit, int kTiles>
__host__ __device__ constexpr int RingStageBytes() {
  return kGemvWarps * kTiles * Unit::kSlotBytes;
}

// Stages that fit beside the table and the partial sums, at most 8.
template <class Unit, int kColumns, int kTiles>
__host__ __device__ constexpr int RingStages() {
  constexpr int kSharedBytes = 227 * 1024;
  constexpr int kFit =
      (kSharedBytes - GemvSharedBytes<Unit, kColumns, kTiles>()) / RingStageBytes<Unit, kTiles>();
  return kFit < 8 ? kFit : 8;
}

template <class Unit, int kColumns, int kTiles>
__host__ __device__ constexpr int RingSharedBytes() {
  return GemvSharedBytes<Unit, kColumns, kTiles>() +
         RingStages<Unit, kColumns, kTiles>() * RingStageBytes<Unit, kTiles>();
}

// kHeld: units of a warp whose fragments of x stay in registers for every tile; 0: any number, each
// loaded one unit ahead of its use.
template <class Pairs, class Unit, int kColumns, int kTiles, int kHeld>
__global__ void __launch_bounds__(kGemvWarps * 32, 1)
    GemvRingKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args) {
  extern __shared__ __align__(16) uint32_t shared[];
  constexpr int kStages = RingStages<Unit, kColumns, kTiles>();
  static_assert(kStages >= 2);
  constexpr int kBuffer = PartialBytes<kColumns, kTiles>() / 4;
  const uint32_t* table = shared;
  float* partials = reinterpret_cast<float*>(shared) + Unit::kTableBytes / 4;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  char* ring = reinterpret_cast<char*>(shared) + GemvSharedBytes<Unit, kColumns, kTiles>() +
               warp * kTiles * Unit::kSlotBytes;

  const int64_t tiles16 = (static_cast<int64_t>(w.n) + kUnitRows - 1) / kUnitRows;
  const int64_t tiles = (tiles16 + kTiles - 1) / kTiles;
  const int slots = warp < w.units ? (w.units - warp + kGemvWarps - 1) / kGemvWarps : 0;

  // The unit that is copied next, and the stage it goes to.
  int64_t copy_tile = slots > 0 ? blockIdx.x : tiles;
  int copy_slot = 0;
  int copy_stage = 0;
  const auto copy_next = [&] {
    if (copy_tile < tiles) {
      char* to = ring + copy_stage * RingStageBytes<Unit, kTiles>();
#pragma unroll
      for (int part = 0; part < kTiles; ++part) {
        // A tile past the last one repeats it; its sums are not stored.
        Unit::Copy(w, min(copy_tile * kTiles + part, tiles16 - 1), warp + copy_slot * kGemvWarps,
                   lane, to + part * Unit::kSlotBytes);
      }
      if (++copy_slot == slots) {
        copy_slot = 0;
        copy_tile += gridDim.x;
      }
      copy_stage = copy_stage + 1 == kStages ? 0 : copy_stage + 1;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  Fragments<kColumns> x[kHeld > 0 ? kHeld : 1];
#pragma unroll
  for (int slot = 0; slot < (kHeld > 0 ? kHeld : 1); ++slot) {
    const int32_t unit = warp + slot * kGemvWarps;
    if (unit < w.units) x[slot].Load(args, unit, lane);
  }
#pragma unroll 1
  for (int stage = 0; stage + 1 < kStages; ++stage) copy_next();
  if constexpr (Unit::kTableBytes > 0) {
    Unit::FillTable(w, shared);
    __syncthreads();
  }

  int buffer = 0;
  int stage = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sums[kTiles][kColumns][4] = {};
    const auto multiply = [&](const Fragments<kColumns>& fragments) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      const char* from = ring + stage * RingStageBytes<Unit, kTiles>();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      Unit units[kTiles];
#pragma unroll
      for (int part = 0; part < kTiles; ++part) {
        units[part].Fetch(w, lane, from + part * Unit::kSlotBytes);
      }
      copy_next();
      MultiplyUnits<Pairs, Unit, kColumns, kTiles>(w, table, units, fragments, sums);
    };
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int slot = 0; slot < kHeld; ++slot) {
        if (slot < slots) multiply(x[slot]);
      }
    } else {
#pragma unroll 1
      for (int slot = 0; slot < slots; ++slot) {
        const Fragments<kColumns> fragments = x[0];
        const int next = slot + 1 == slots ? 0 : slot + 1;
        x[0].Load(args, warp + next * kGemvWarps, lane);
        multiply(fragments);
      }
    }
    AddWarps<kColumns, kTiles>(w, args, tile, sums, partials + buffer * kBuffer);
    if constexpr (kPartialBuffers<Unit> == 2) {
      buffer ^= 1;
    } else {
      __syncthreads();
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_
