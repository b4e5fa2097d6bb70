// gemv_chain.cuh for one chain and weights with a table, which shared memory binds: a warp takes
// two tiles of 16 outputs at a time, so that it reads x once for both, and lanes whose row of x is
// not there read none. Half the warps have twice the registers each.
//
//   slots           [warp][slot][tile]: codes | scales, of kTwoUnits units
//   x               [row] whole, in parts of kTwoPartUnits units that a barrier each tells
//
// Cycles that shared memory is busy with a unit of 16 outputs: 32 for lookups, 16 for codes in and
// out, 3 for scales, 8 for x of 5 to 8 rows, where one tile a warp takes 16.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_TWO_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_TWO_CUH_

#include "kernels/cuda/device/gemv_chain.cuh"

namespace nibble::cuda {

inline constexpr int kTwoTiles = 2;
inline constexpr int kTwoUnits = 2;  // of an item
inline constexpr int kTwoSlots = 2;  // of kTwoTiles items
inline constexpr int kTwoWarps = 8;
inline constexpr int kTwoThreads = kTwoWarps * 32;
inline constexpr int kTwoPartUnits = 4;
inline constexpr int kTwoMostUnits = 32;
inline constexpr int kTwoEarlyParts = 2;  // of x, asked for before the second items
static_assert(kTwoPartUnits % kTwoUnits == 0);

// What follows the table in dynamic shared memory, and then x.
template <class Unit>
inline constexpr int kTwoWarpBytes = kTwoSlots* kTwoTiles* SlotOf<Unit, kTwoUnits>::kBytes;
template <class Unit>
inline constexpr int kTwoSlotBytes = kTwoWarps* kTwoWarpBytes<Unit>;

// How many units of an item there are, known to the compiler.
template <int kUnits>
struct ItemUnits {
  static constexpr int kCount = kUnits;
};

// SharedFragments of one row a lane; any values where the row is not there: they meet no other.
template <class Inputs>
struct FewRowFragments {
  uint32_t row_at;
  bool there;
  __device__ uint4 Part(int, int i) const {
    return Inputs::Part([&](int at) { return LoadShared16BytesIf(there, row_at + at); },
                        [](int) { return uint2{}; }, i);
  }
};

// A part of row `warp` of x, where there is one, to its place: `to` and `from` are those of the row
// and the lane. Arrives once what the thread copies is there.
__device__ inline void CopyXPart(const GemvArgs& args, int32_t units, int part, int warp, int lane,
                                 uint32_t to, const char* from, uint32_t x_full) {
  if (warp >= args.m) return;
  constexpr int kPartBytes = kTwoPartUnits * kUnitXBytes;
#pragma unroll
  for (int at = 0; at < kPartBytes; at += 512) {
    const int piece = part * kPartBytes + at;
    if (piece + lane * 16 < units * kUnitXBytes) CopyAsync16Bytes(to + piece, from + piece);
  }
  ArriveAfterAsyncCopies(x_full + part * 8);
}

// Tiles `tile` and up to y of type T.
template <class T, class Unit>
__device__ inline void StoreTwoTilesTo(const WeightView& w, const GemvArgs& args, int32_t tile,
                                       int lane, const float (&sums)[kTwoTiles][1][4]) {
  const int32_t first = tile * kUnitRows + lane / 4;
#pragma unroll
  for (int i = 0; i < kTwoTiles * 2; ++i) {
    const int32_t n = first + i * 8;
    if (n >= w.n) continue;
    const auto factors = OutputFactors::Of<Unit>(w, n);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int row = lane % 4 * 2 + odd;
      if (row >= args.m) continue;
      static_cast<T*>(args.y)[row * args.y_stride + n] =
          FromFloat<T>(factors.Finish(sums[i / 2][0][i % 2 * 2 + odd]));
    }
  }
}
template <class Unit>
__device__ inline void StoreTwoTiles(const WeightView& w, const GemvArgs& args, int32_t tile,
                                     int lane, const float (&sums)[kTwoTiles][1][4]) {
  switch (args.y_type) {
    case Element::kBF16:
      return StoreTwoTilesTo<__nv_bfloat16, Unit>(w, args, tile, lane, sums);
    case Element::kF16:
      return StoreTwoTilesTo<__half, Unit>(w, args, tile, lane, sums);
    default:
      return StoreTwoTilesTo<float, Unit>(w, args, tile, lane, sums);
  }
}

// At most kTwoMostUnits units and 8 rows.
template <class Pairs, class Unit>
__global__ void __launch_bounds__(kTwoThreads, 1)
    GemvChainTwoKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                       const __grid_constant__ ChainArgs places) {
#if __CUDA_ARCH__ >= 900
  using Item = SlotOf<Unit, kTwoUnits>;
  constexpr int kItemBytes = kTwoTiles * Item::kBytes;
  constexpr int kParts = kTwoMostUnits / kTwoPartUnits;
  static_assert(Unit::kZeroBytes == 0);
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[kParts];  // a part of x is there
  LaunchDependents();
  const uint32_t shared = Kept(SharedAddress(shared_words));
  const uint32_t x_full = Kept(SharedAddress(barriers));
  const int lane = static_cast<int>(Kept(threadIdx.x % 32));
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int part = 0; part < kParts; ++part) InitBarrier(x_full + part * 8, args.m * 32);
    FenceBarrierInit();
  }
  __syncwarp();
  const auto grid = static_cast<int32_t>(gridDim.x);
  const ChainUnits chain(w.units, 0, 1);
  const int32_t first = (static_cast<int32_t>(blockIdx.x) + warp * grid) * kTwoTiles;
  const int32_t step = kTwoWarps * grid * kTwoTiles;
  const uint32_t own = Kept(shared + Unit::kTableBytes + warp * kTwoWarpBytes<Unit>);
  ChainStream<Unit, kTwoUnits> even(w, chain, lane, first, step);
  ChainStream<Unit, kTwoUnits> odd(w, chain, lane, first + 1, step);
  const auto fill = [&](uint32_t slot) {
    even.Fill(slot);
    odd.Fill(slot + Item::kBytes);
  };
  fill(own);
#pragma unroll
  for (int i = 0; i < 16 / kTwoWarps; ++i) {
    FillTableByWarps<Pairs, Unit>(w, shared_words, warp + i * kTwoWarps, lane);
  }
  __syncthreads();
  WaitForDependencies();
  static_assert(kTwoWarps == 8);
  const char* x_from = static_cast<const char*>(args.x) + warp * args.x_stride * 2 + lane * 16;
  const uint32_t x_to = shared + places.x_at + warp * places.x_row_bytes + lane * 16;
  // The first parts of x would wait behind more weights, and these behind all of x.
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (part == kTwoEarlyParts) {
#pragma unroll
      for (int ahead = 1; ahead < kTwoSlots; ++ahead) fill(own + ahead * kItemBytes);
    }
    CopyXPart(args, w.units, part, warp, lane, x_to, x_from, x_full);
  }

  FewRowFragments<typename Unit::Inputs> x;
  x.there = lane / 4 < args.m;
  const uint32_t x_own =
      Kept(shared + places.x_at + lane / 4 * places.x_row_bytes + Unit::Inputs::Offset(lane));
  const uint32_t codes_at = Unit::CodesOffset(lane);
  const uint32_t scales_at = Item::kScalesAt + lane / 4 * Unit::kRowScaleBytes;
  uint32_t slot = own;
  float sums[kTwoTiles][1][4];
  // An item of so many units from `unit` on.
  const auto multiply = [&](int32_t unit, auto count) {
    constexpr int kCount = decltype(count)::kCount;
    if (unit % kTwoPartUnits == 0) WaitBarrier(x_full + unit / kTwoPartUnits * 8, 0);
    WaitForAsyncCopies<(kTwoSlots - 1) * kTwoTiles>();
    __syncwarp();
    Unit units[kCount][kTwoTiles];
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int t = 0; t < kTwoTiles; ++t) {
        const uint32_t item = slot + t * Item::kBytes;
        units[u][t].Load(item + codes_at + u * Unit::kCodeBytes,
                         item + scales_at + u * Unit::kScaleBytes, 0);
      }
    }
    __syncwarp();
    fill(slot);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      x.row_at = x_own + (unit + u) * kUnitXBytes;
      MultiplyUnits<Pairs, Unit, 1, kTwoTiles, 1>(w, shared_words, units[u], x, sums);
    }
    slot += kItemBytes;
    if (slot == own + kTwoWarpBytes<Unit>) slot = own;
  };
  const int32_t whole = w.units / kTwoUnits * kTwoUnits;
  for (int32_t tile = first; tile * kUnitRows < w.n; tile += step) {
#pragma unroll
    for (int i = 0; i < kTwoTiles * 4; ++i) (&sums[0][0][0])[i] = 0.0f;
    for (int32_t unit = 0; unit < whole; unit += kTwoUnits) {
      multiply(unit, ItemUnits<kTwoUnits>());
    }
    if (whole < w.units) multiply(whole, ItemUnits<1>());
    StoreTwoTiles<Unit>(w, args, tile, lane, sums);
  }
  // Of x by a warp without tiles.
  WaitForAsyncCopies<0>();
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_TWO_CUH_
