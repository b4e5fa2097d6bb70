// The GEMV that adds in the order of gemm_wgmma.cuh, so that a row's bits are the same in both,
// whatever the number of rows. K is added in chains, each by one warp: its units one after another,
// as a warpgroup of wgmma adds them. There is one chain of all units, as in a tile of wgmma that no
// blocks share; or several of equal parts of K, as in one that blocks share.
//
//   device memory   [tile of 16 outputs][unit]
//        | 16-byte asynchronous copies, a group an item of kUnits units; kSlots items ahead
//   slots           [warp][slot]: codes | scales | zero points
//   x               [row] the block's K, in parts that a barrier each tells (chain_x.cuh)
//        | wait for the oldest group
//   registers       decode -> mma.m16n8k16 -> sums * scales
//        | of several chains: shared memory, where the slots were
//   y
//
// With one chain a warp takes whole tiles, goes from one to the next, and meets no other warp.
// Where rows of x do not fit a block, the two of a cluster have half of the chains each, and so of
// K; the second sends its sums to the first.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_CUH_

#include "kernels/cuda/device/chain_stream.cuh"
#include "kernels/cuda/device/chain_x.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/output_factors.cuh"

namespace nibble::cuda {

inline constexpr int kChainSumsPitch = kUnitRows + 4;  // floats from a row of x to the next

struct ChainArgs {
  int32_t chains = 1;       // of a tile: at most kSlotsWarps, a multiple of the shape's kBlocks
  int32_t x_at = 0;         // bytes, in dynamic shared memory
  int32_t x_row_bytes = 0;  // from a row to the next
};

// kUnits: units of an item. kSlots: items of a warp on their way. kX: of rows of x. kColumns:
// groups of 8 of them. kBlocks: 2 where a cluster's blocks have half of the chains each, else 1.
template <int kUnits_, int kSlots_, ChainX kX_ = ChainX::kSkewed, int kColumns_ = 1,
          int kBlocks_ = 1>
struct ChainShape {
  static constexpr int kUnits = kUnits_;
  static constexpr int kSlots = kSlots_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr ChainX kX = kX_;
  static constexpr bool kSwizzled = kX == ChainX::kSwizzled;
  // What bulk copies bring is a block's whole K of up to 8 rows.
  static_assert(kSwizzled || (kColumns == 1 && kBlocks == 1));
  static constexpr int kSumsBytes = kColumns * 8 * kChainSumsPitch * 4;  // of a warp
  static constexpr int kInboxBytes = (kBlocks - 1) * kSlotsWarps * kSumsBytes;
  template <class Unit>
  __host__ __device__ static constexpr int WarpBytes() {
    return kSlots * SlotOf<Unit, kUnits>::kBytes;
  }
  // Of dynamic shared memory: table | slots | inbox | x.
  template <class Unit>
  __host__ __device__ static constexpr int InboxAt() {
    return Unit::kTableBytes + kSlotsWarps * WarpBytes<Unit>();
  }
  template <class Unit>
  __host__ __device__ static constexpr int XAt() {
    return InboxAt<Unit>() + kInboxBytes;
  }
};

// sums += the products of an item's units, in their order; of the first alone unless `all`.
template <class Pairs, class Unit, int kUnits, int kColumns, class X>
__device__ inline void MultiplyInChain(const WeightView& w, const uint32_t* table,
                                       const Unit (&units)[kUnits], const X (&x)[kUnits], bool all,
                                       float (&sums)[kColumns][4]) {
  constexpr int kScales = Unit::kScalesPerUnit;
  if constexpr (kScales == 0) {
    static_assert(kUnits == 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 b[kColumns];
#pragma unroll
      for (int column = 0; column < kColumns; ++column) b[column] = x[0].Part(column, i);
      uint32_t low[4];
      uint32_t high[4];
      units[0].Decode(w, table, i, low, high);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        Pairs::Mma(sums[column], low[0], high[0], low[1], high[1], b[column].x, b[column].y);
      }
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        Pairs::Mma(sums[column], low[2], high[2], low[3], high[3], b[column].z, b[column].w);
      }
    }
  } else {
    static_assert(kColumns == 1);
    float partial[kUnits][kScales][4] = {};
    float2 scale[kUnits][kScales];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int group = i * kScales / 4;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const uint4 b = x[u].Part(0, i);
        if (i * kScales % 4 == 0) scale[u][group] = units[u].Scale(w, group);
        MultiplyPart<Pairs>(w, table, units[u], i, b, partial[u][group]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (u > 0 && !all) continue;
#pragma unroll
      for (int group = 0; group < kScales; ++group) {
        AddScaled(scale[u][group], partial[u][group], sums[0]);
      }
    }
  }
}

// Element [row, n] of y.
template <class Unit>
__device__ inline void StoreFinished(const WeightView& w, const GemvArgs& args, int row, int32_t n,
                                     float sum) {
  const auto factors = OutputFactors::Of<Unit>(w, n);
  StoreElement(args.y, args.y_type, row * args.y_stride + n, factors.Finish(sum));
}

// Sums of a block's tiles, those of warp i at `sums` + i * warp_bytes, added as wgmma adds them.
// Those of a second block have the chains after those of the first, and sent their sums to `inbox`.
template <class Unit, class Shape>
__device__ inline void AddChains(const WeightView& w, const GemvArgs& args, int chains,
                                 int32_t first_tile, int tiles, uint32_t sums, uint32_t inbox) {
  constexpr int kWarpBytes = Shape::template WarpBytes<Unit>();
  const int outputs = tiles * kUnitRows;
  for (int index = threadIdx.x; index < outputs * args.m; index += kSlotsThreads) {
    const int row = index / outputs;
    const int output = index % outputs;
    const int32_t n = first_tile * kUnitRows + output;
    if (n >= w.n) continue;
    const int first_warp = output / kUnitRows * chains;
    const int of_warp = (row * kChainSumsPitch + output % kUnitRows) * 4;
    float sum = 0.0f;
    const auto add = [&](uint32_t from, int warp_bytes) {
      from += first_warp * warp_bytes + of_warp;
      for (int chain = 0; chain < chains; ++chain) {
        sum = __fadd_rn(sum, LoadShared1Float(from + chain * warp_bytes));
      }
    };
    add(sums, kWarpBytes);
    if constexpr (Shape::kBlocks > 1) add(inbox, Shape::kSumsBytes);
    StoreFinished<Unit>(w, args, row, n, sum);
  }
}

// A warp's sums of the rows that there are, from `own` to `inbox` of the cluster's first block,
// which is open after AwaitCluster.
template <class Shape>
__device__ inline void SendSums(int rows, int lane, uint32_t own, uint32_t inbox,
                                uint32_t inbox_full) {
  const uint32_t to = SharedOf(inbox, 0);
  const uint32_t barrier = SharedOf(inbox_full, 0);
#pragma unroll
  for (int column = 0; column < Shape::kColumns; ++column) {
    const int row = column * 8 + lane / 4;
    const int at = (row * kChainSumsPitch + lane % 4 * 4) * 4;
    if (row < rows) PushFloats(to + at, LoadShared4Floats(own + at), barrier);
  }
}

template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(kSlotsThreads, 1)
    GemvChainKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                    const __grid_constant__ ChainArgs places) {
#if __CUDA_ARCH__ >= 900
  constexpr int kUnits = Shape::kUnits;
  constexpr int kSlots = Shape::kSlots;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kBlocks = Shape::kBlocks;
  using Item = SlotOf<Unit, kUnits>;
  // Sums take the place of slots.
  static_assert(kSlots * Item::kBytes >= Shape::kSumsBytes);
  using Inputs = typename Unit::Inputs;
  using X = ChainFragments<Inputs, kColumns, Shape::kSwizzled>;
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[kChainXParts];  // a part of x is there
  __shared__ __align__(8) uint64_t inbox_barrier;           // the sums of the other block are
  LaunchDependents();
  const uint32_t shared = Kept(SharedAddress(shared_words));
  const uint32_t x_full = SharedAddress(barriers);
  const uint32_t inbox = shared + Shape::template InboxAt<Unit>();
  const uint32_t inbox_full = SharedAddress(&inbox_barrier);
  const int lane = static_cast<int>(Kept(threadIdx.x % 32));
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  // With one chain the tiles of the warps lie a grid apart, else those of a block side by side.
  const bool one = kBlocks == 1 && places.chains == 1;
  const int chains = places.chains / kBlocks;  // of the block
  const int rank = kBlocks > 1 ? static_cast<int>(RankInCluster()) : 0;
  const int block_tiles = kSlotsWarps / chains;
  const int part_of_block = warp / chains;
  const auto grid = static_cast<int32_t>(gridDim.x) / kBlocks;
  const auto block = static_cast<int32_t>(blockIdx.x) / kBlocks;
  if (threadIdx.x == 0) {
    for (int part = 0; part < kChainXParts; ++part) {
      InitBarrier(x_full + part * 8, Shape::kSwizzled ? kSlotsThreads : 1);
    }
    if constexpr (kBlocks > 1) {
      const int tiles = min(block_tiles, Tiles16(w) - block * block_tiles);
      InitBarrier(inbox_full, 1);
      ArriveExpecting(inbox_full, tiles * chains * args.m * kUnitRows * 4);
    }
    FenceBarrierInit();
  }
  if constexpr (kBlocks > 1) {
    __syncwarp();
    ArriveCluster<true>();  // the inbox is open
  }
  const ChainUnits of_block(w.units, rank, kBlocks);
  ChainUnits chain(w.units, rank * chains + warp % chains, places.chains);
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
  const int32_t part_units = (of_block.count + kChainXParts - 1) / kChainXParts;
  const uint32_t x_at = shared + places.x_at;
  if constexpr (Shape::kSwizzled) {
    CopyChainXByThreads<kColumns>(args, of_block, part_units, x_at, places.x_row_bytes, x_full);
  } else {
    CopyChainXInBulk(args, of_block, part_units, x_at, places.x_row_bytes, x_full, warp, lane);
  }
#pragma unroll
  for (int ahead = 1; ahead < kSlots; ++ahead) stream.Fill(own + ahead * Item::kBytes);

  // The lane's row is the last one where there are fewer: its sums are not stored.
  uint32_t x_own[kColumns];  // unit 0 of K
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int row = min(column * 8 + lane / 4, args.m - 1);
    const uint32_t swizzle = Shape::kSwizzled ? QuarterSwizzle(row) : 0;
    x_own[column] = Kept(x_at + row * places.x_row_bytes + (Inputs::Offset(lane) ^ swizzle) -
                         of_block.first * kUnitXBytes);
  }
  const uint32_t codes_at = Unit::CodesOffset(lane);
  const uint32_t scales_at = Item::kScalesAt + lane / 4 * Unit::kRowScaleBytes;
  const uint32_t zeros_at = Item::kZerosAt + lane / 4 * 2;
  const int32_t end = chain.first + chain.count;
  const int32_t first_part = (chain.first - of_block.first) / part_units;
  const int32_t first_end = of_block.first + first_part * part_units;
  const uint32_t first_full = x_full + first_part * 8;
  uint32_t slot = own;
  for (int32_t tile = first; tile * kUnitRows < w.n; tile += step) {
    float sums[kColumns][4] = {};
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
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          x[u].rows_at[column] = x_own[column] + of_x * kUnitXBytes;
        }
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
      MultiplyInChain<Pairs, Unit>(w, shared_words, units, x, all, sums);
      slot += Item::kBytes;
      if (slot == own + kSlots * Item::kBytes) slot = own;
    }
#pragma unroll
    for (int i = 0; i < 4 * kColumns; ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int output = lane / 4 + i / 2 % 2 * 8;
      const int32_t n = tile * kUnitRows + output;
      const float sum = sums[i / 4][i % 4];
      if (!one) {
        StoreShared1Float(own + (row * kChainSumsPitch + output) * 4, sum);
      } else if (row < args.m && n < w.n) {
        StoreFinished<Unit>(w, args, row, n, sum);
      }
    }
  }
  // A warp without a tile has copied x for others.
  if constexpr (Shape::kSwizzled) WaitForAsyncCopies<0>();
  if (one) return;
  if constexpr (kBlocks > 1) {
    AwaitCluster();
    if (rank > 0) {
      const bool has_tile = part_of_block < block_tiles && first * kUnitRows < w.n;
      __syncwarp();
      if (has_tile) {
        SendSums<Shape>(args.m, lane, own, inbox + warp * Shape::kSumsBytes, inbox_full);
      }
      return;
    }
  }
  __syncthreads();
  if constexpr (kBlocks > 1) WaitBarrierOfCluster(inbox_full, 0);
  AddChains<Unit, Shape>(w, args, chains, block * block_tiles, block_tiles,
                         shared + Unit::kTableBytes, inbox);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CHAIN_CUH_
