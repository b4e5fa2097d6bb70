// The GEMV that adds in the order of gemm_wgmma.cuh, so that a row's bits are the same in both,
// whatever the number of rows. K is added in chains, each by one warp: its units one after another,
// as a warpgroup of wgmma adds them. There is one chain of all units, as in a tile of wgmma that no
// blocks share; or several of equal parts of K, as in one that blocks share.
//
//   device memory   [tile of 16 outputs][unit]
//        | 16-byte asynchronous copies, a group an item of kUnits units; kSlots items ahead
//   slots           [warp][slot]: codes | scales | zero points
//   x               [row] whole, in parts of K that a barrier each tells
//        | wait for the oldest group
//   registers       decode -> mma.m16n8k16 -> sums * scales
//        | of several chains: shared memory, where the slots were
//   y
//
// With one chain a warp takes whole tiles, goes from one to the next, and meets no other warp.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_CUH_

#include "kernels/cuda/device/chain_stream.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/output_factors.cuh"

namespace nibble::cuda {

inline constexpr int kChainXParts = 8;                 // of K
inline constexpr int kChainSumsPitch = kUnitRows + 4;  // floats from a row of x to the next

struct ChainArgs {
  int32_t chains = 1;       // at most kSlotsWarps
  int32_t x_at = 0;         // bytes, in dynamic shared memory
  int32_t x_row_bytes = 0;  // from a row to the next
};

// kUnits: units of an item. kSlots: items of a warp on their way.
template <int kUnits_, int kSlots_>
struct ChainShape {
  static constexpr int kUnits = kUnits_;
  static constexpr int kSlots = kSlots_;
  // Bytes of all slots.
  template <class Unit>
  __host__ __device__ static constexpr int SlotBytes() {
    return kSlotsWarps * kSlots * SlotOf<Unit, kUnits>::kBytes;
  }
};

// sums += the products of an item's units, in their order; of the first alone unless `all`.
template <class Pairs, class Unit, int kUnits, class X>
__device__ inline void MultiplyInChain(const WeightView& w, const uint32_t* table,
                                       const Unit (&units)[kUnits], const X (&x)[kUnits], bool all,
                                       float (&sums)[4]) {
  constexpr int kScales = Unit::kScalesPerUnit;
  if constexpr (kScales == 0) {
    static_assert(kUnits == 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 b = x[0].Part(0, i);
      uint32_t low[4];
      uint32_t high[4];
      units[0].Decode(w, table, i, low, high);
      Pairs::Mma(sums, low[0], high[0], low[1], high[1], b.x, b.y);
      Pairs::Mma(sums, low[2], high[2], low[3], high[3], b.z, b.w);
    }
  } else {
    float partial[kUnits][kScales][4] = {};
    float2 scale[kUnits][kScales];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int group = i * kScales / 4;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const uint4 b = x[u].Part(0, i);
        uint32_t low[4];
        uint32_t high[4];
        if (i * kScales % 4 == 0) scale[u][group] = units[u].Scale(w, group);
        units[u].Decode(w, table, i, low, high);
        Pairs::Mma(partial[u][group], low[0], high[0], low[1], high[1], b.x, b.y);
        Pairs::Mma(partial[u][group], low[2], high[2], low[3], high[3], b.z, b.w);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (u > 0 && !all) continue;
#pragma unroll
      for (int group = 0; group < kScales; ++group) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[i] = __fmaf_rn(i < 2 ? scale[u][group].x : scale[u][group].y, partial[u][group][i],
                              sums[i]);
        }
      }
    }
  }
}

// Element [row, n] of y.
template <class Unit>
__device__ inline void StoreFinished(const WeightView& w, const GemvArgs& args, int row, int32_t n,
                                     float sum) {
  OutputFactors factors(Unit::kUnscale);
  if constexpr (Unit::kScalesPerUnit == 0) {
    factors.scale = static_cast<const float*>(w.scales)[w.rows_per_scale == 1 ? n : 0];
  }
  if (w.bias != nullptr) factors.bias = w.bias[n];
  StoreElement(args.y, args.y_type, row * args.y_stride + n, factors.Finish(sum));
}

// Sums of a block's tiles, those of warp i at `sums` + i * warp_bytes, added as wgmma adds them.
template <class Unit>
__device__ inline void AddChains(const WeightView& w, const GemvArgs& args, const ChainArgs& places,
                                 int32_t first_tile, int tiles, uint32_t sums, int warp_bytes) {
  const int outputs = tiles * kUnitRows;
  for (int index = threadIdx.x; index < outputs * args.m; index += kSlotsThreads) {
    const int row = index / outputs;
    const int output = index % outputs;
    const int32_t n = first_tile * kUnitRows + output;
    if (n >= w.n) continue;
    const uint32_t from = sums + output / kUnitRows * places.chains * warp_bytes +
                          (row * kChainSumsPitch + output % kUnitRows) * 4;
    const auto of_chain = [&](int chain) {
      return __uint_as_float(LoadShared4Bytes(from + chain * warp_bytes));
    };
    float sum = 0.0f;
    for (int chain = 0; chain < places.chains; ++chain) sum = __fadd_rn(sum, of_chain(chain));
    StoreFinished<Unit>(w, args, row, n, sum);
  }
}

template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(kSlotsThreads, 1)
    GemvChainKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                    const __grid_constant__ ChainArgs places) {
#if __CUDA_ARCH__ >= 900
  constexpr int kUnits = Shape::kUnits;
  constexpr int kSlots = Shape::kSlots;
  using Item = SlotOf<Unit, kUnits>;
  // Sums of 8 rows take the place of slots.
  static_assert(kSlots * Item::kBytes >= 8 * kChainSumsPitch * 4);
  using X = SharedFragments<typename Unit::Inputs, 1>;
  constexpr int kUnitXBytes = kUnitInputs * 2;
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[kChainXParts];  // a part of x is there
  LaunchDependents();
  const uint32_t shared = Kept(SharedAddress(shared_words));
  const uint32_t x_full = SharedAddress(barriers);
  const int lane = static_cast<int>(Kept(threadIdx.x % 32));
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int part = 0; part < kChainXParts; ++part) InitBarrier(x_full + part * 8, 1);
    FenceBarrierInit();
  }
  // With one chain the tiles of the warps lie a grid apart, else those of a block side by side.
  const bool one = places.chains == 1;
  const int block_tiles = kSlotsWarps / places.chains;
  const int part_of_block = warp / places.chains;
  const auto grid = static_cast<int32_t>(gridDim.x);
  const auto block = static_cast<int32_t>(blockIdx.x);
  ChainUnits chain(w.units, warp % places.chains, places.chains);
  if (part_of_block >= block_tiles) chain.count = 0;
  const int32_t first = one ? block + warp * grid : block * block_tiles + part_of_block;
  const int32_t step = one ? kSlotsWarps * grid : grid * block_tiles;
  const uint32_t own = Kept(shared + Unit::kTableBytes + warp * kSlots * Item::kBytes);
  ChainStream<Unit, kUnits> stream(w, chain, lane, first, step);
  // x would wait behind more of them.
  stream.Fill(own);
  FillTableByWarps<Pairs, Unit>(w, shared_words, warp, lane);
  __syncthreads();
  WaitForDependencies();
  const int32_t part_units = (w.units + kChainXParts - 1) / kChainXParts;
  if (warp < kChainXParts) {
    const int32_t begin = warp * part_units;
    const int bytes = min(part_units, w.units - begin) * kUnitXBytes;
    if (bytes > 0) {
      if (lane == 0) ArriveExpecting(x_full + warp * 8, args.m * bytes);
      __syncwarp();
      if (lane < args.m) {
        BulkCopy(shared + places.x_at + lane * places.x_row_bytes + begin * kUnitXBytes,
                 static_cast<const uint16_t*>(args.x) + lane * args.x_stride + begin * kUnitInputs,
                 bytes, x_full + warp * 8);
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int ahead = 1; ahead < kSlots; ++ahead) stream.Fill(own + ahead * Item::kBytes);

  // The lane's row is the last one where there are fewer: its sums are not stored.
  const uint32_t x_own =
      Kept(shared + places.x_at + min(lane / 4, args.m - 1) * places.x_row_bytes +
           Unit::Inputs::Offset(lane));
  const uint32_t codes_at = Unit::CodesOffset(lane);
  const uint32_t scales_at = Item::kScalesAt + lane / 4 * Unit::kRowScaleBytes;
  const uint32_t zeros_at = Item::kZerosAt + lane / 4 * 2;
  const int32_t end = chain.first + chain.count;
  const int32_t first_end = chain.first / part_units * part_units;
  const uint32_t first_full = x_full + chain.first / part_units * 8;
  uint32_t slot = own;
  for (int32_t tile = first; tile * kUnitRows < w.n; tile += step) {
    float sums[4] = {};
    uint32_t part_full = first_full;
    int32_t part_end = first_end;
    for (int32_t unit = chain.first; unit < end; unit += kUnits) {
      const bool all = kUnits == 1 || unit + 1 < end;
      X x[kUnits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int32_t of_x = u == 0 || all ? unit + u : unit;
        while (of_x >= part_end) {
          WaitBarrier(part_full, 0);
          part_full += 8;
          part_end += part_units;
        }
        x[u].rows_at[0] = x_own + of_x * kUnitXBytes;
      }
      WaitForAsyncCopies<kSlots - 1>();
      __syncwarp();
      Unit units[kUnits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        units[u].Load(slot + codes_at + u * Unit::kCodeBytes,
                      slot + scales_at + u * Unit::kScaleBytes,
                      slot + zeros_at + u * Unit::kZeroBytes);
      }
      __syncwarp();
      stream.Fill(slot);
      MultiplyInChain<Pairs, Unit, kUnits>(w, shared_words, units, x, all, sums);
      slot += Item::kBytes;
      if (slot == own + kSlots * Item::kBytes) slot = own;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane % 4 * 2 + i % 2;
      const int output = lane / 4 + i / 2 * 8;
      const int32_t n = tile * kUnitRows + output;
      if (!one) {
        StoreShared4Bytes(own + (row * kChainSumsPitch + output) * 4, __float_as_uint(sums[i]));
      } else if (row < args.m && n < w.n) {
        StoreFinished<Unit>(w, args, row, n, sums[i]);
      }
    }
  }
  if (one) return;
  __syncthreads();
  AddChains<Unit>(w, args, places, block * block_tiles, block_tiles, shared + Unit::kTableBytes,
                  kSlots * Item::kBytes);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_CUH_
