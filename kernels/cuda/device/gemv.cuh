// y = x W^T + bias for up to 16 rows of 16-bit x, at the speed of reading the packed weight.
//
// Weights are the 16-row operand of mma.m16n8k16 and the rows of x its 8 columns, so a row's sums
// never meet another row's. A block takes kTiles x 16 outputs and the whole K; its warps take every
// kWarps-th unit of 128 inputs; the partial sums of the warps are added in the order of the warps.
// Which warp takes which unit depends on K alone, so a row's bits do not depend on M either.
//
// Scales multiply the binary32 sums of their group. Blocks are persistent; a warp refills the
// registers of a unit right after it has used them, with the unit that it will need next.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CUH_

#include "kernels/cuda/device/gemv_units.cuh"

namespace nibble::cuda {

inline constexpr int kGemvWarps = 16;

// Columns of x that a thread needs of one unit: 16 bytes for each 32 inputs and 8 rows, in the
// order of Inputs.
template <class Inputs, int kColumns>
struct Fragments {
  uint4 part[kColumns][4];

  __device__ void Load(const GemvArgs& args, int32_t unit, int lane) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const auto* row = static_cast<const uint16_t*>(args.x) +
                        Row(args, column, lane) * args.x_stride + unit * kUnitInputs;
      const char* from = reinterpret_cast<const char*>(row) + Inputs::Offset(lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        part[column][i] =
            Inputs::Part([&](int at) { return *reinterpret_cast<const uint4*>(from + at); },
                         [&](int at) { return *reinterpret_cast<const uint2*>(from + at); }, i);
      }
    }
  }
  __device__ uint4 Part(int column, int i) const { return part[column][i]; }
  // A row past the last one repeats it: its sums meet no other row's and are not stored.
  __device__ static int Row(const GemvArgs& args, int column, int lane) {
    return min(column * 8 + lane / 4, args.m - 1);
  }
};

// sums[tile][column][..] += scale * (16 rows of a tile's unit x 8 rows of x) / kUnscale. The two
// products of each 32 inputs go to kChains sums of their own, and the tiles take turns: what
// depends on one another is short. A unit without scales of its own counts as one with the scale 1.
// x.Part(column, i) gives a thread's 16 bytes of 8 rows and 32 inputs.
template <class Pairs, class Unit, int kColumns, int kTiles, int kChains, class X>
__device__ inline void MultiplyUnits(const WeightView& w, const uint32_t* table,
                                     const Unit (&units)[kTiles], const X& x,
                                     float (&sums)[kTiles][kColumns][4]) {
  constexpr int kScales = Unit::kScalesPerUnit > 0 ? Unit::kScalesPerUnit : 1;
  constexpr int kPartsPerScale = 4 / kScales;
#pragma unroll
  for (int group = 0; group < kScales; ++group) {
    float chains[kChains][kTiles][kColumns][4] = {};
#pragma unroll
    for (int i = group * kPartsPerScale; i < (group + 1) * kPartsPerScale; ++i) {
      uint4 b[kColumns];
#pragma unroll
      for (int column = 0; column < kColumns; ++column) b[column] = x.Part(column, i);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint32_t low[4];
        uint32_t high[4];
        units[tile].Decode(w, table, i, low, high);
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          Pairs::Mma(chains[0][tile][column], low[0], high[0], low[1], high[1], b[column].x,
                     b[column].y);
        }
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          Pairs::Mma(chains[kChains - 1][tile][column], low[2], high[2], low[3], high[3],
                     b[column].z, b[column].w);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float2 scale = units[tile].Scale(w, group);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float partial = chains[0][tile][column][i];
          if constexpr (kChains == 2) partial = __fadd_rn(partial, chains[1][tile][column][i]);
          float& sum = sums[tile][column][i];
          if constexpr (Unit::kScalesPerUnit == 0) {
            sum = __fadd_rn(sum, partial);
          } else {
            sum = __fmaf_rn(i < 2 ? scale.x : scale.y, partial, sum);
          }
        }
      }
    }
  }
}

// sums += the products of 32 inputs of a unit, from 32 i on, and x, a thread's bytes of them.
template <class Pairs, class Unit>
__device__ inline void MultiplyPart(const WeightView& w, const uint32_t* table, const Unit& unit,
                                    int i, const uint4& x, float (&sums)[4]) {
  uint32_t low[4];
  uint32_t high[4];
  unit.Decode(w, table, i, low, high);
  Pairs::Mma(sums, low[0], high[0], low[1], high[1], x.x, x.y);
  Pairs::Mma(sums, low[2], high[2], low[3], high[3], x.z, x.w);
}

// sums += the scales of rows r and r + 8 * the products of a group.
__device__ inline void AddScaled(float2 scale, const float (&products)[4], float (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[i] = __fmaf_rn(i < 2 ? scale.x : scale.y, products[i], sums[i]);
  }
}

// Buffers of partial sums: beside a table there is room for one on every architecture.
template <class Unit>
inline constexpr int kPartialBuffers = Unit::kTableBytes > 0 ? 1 : 2;

// One buffer of the warps' partial sums.
template <int kColumns, int kTiles>
__host__ __device__ constexpr int PartialBytes() {
  return kGemvWarps * kColumns * 8 * (kTiles * kUnitRows + 4) * 4;
}

// Bytes of dynamic shared memory: the table, then the partial sums.
template <class Unit, int kColumns, int kTiles>
__host__ __device__ constexpr int GemvSharedBytes() {
  return Unit::kTableBytes + kPartialBuffers<Unit> * PartialBytes<kColumns, kTiles>();
}

// Adds the sums of a tile over the block's warps, in their order, and stores them with the bias.
// partials [warp][row of x][output].
template <int kColumns, int kTiles>
__device__ inline void AddWarps(const WeightView& w, const GemvArgs& args, int64_t tile,
                                float unscale, const float (&sums)[kTiles][kColumns][4],
                                float* partials) {
  constexpr int kRows = kTiles * kUnitRows;
  constexpr int kRowPitch = kRows + 4;
  constexpr int kWarpPitch = kColumns * 8 * kRowPitch;
  const int lane = threadIdx.x % 32;
  float* mine = partials + threadIdx.x / 32 * kWarpPitch;
#pragma unroll
  for (int part = 0; part < kTiles; ++part) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = column * 8 + lane % 4 * 2 + (i & 1);
        mine[row * kRowPitch + part * kUnitRows + lane / 4 + (i >> 1) * 8] = sums[part][column][i];
      }
    }
  }
  // With two buffers one barrier a tile does: the next tile writes the other buffer, and the one
  // after it waits here.
  __syncthreads();
  for (int index = threadIdx.x; index < kRows * args.m; index += kGemvWarps * 32) {
    const int row = index / kRows;
    const int output = index % kRows;
    const int64_t n = tile * kRows + output;
    if (n >= w.n) continue;
    const float* from = partials + row * kRowPitch + output;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kGemvWarps; ++i) sum = __fadd_rn(sum, from[i * kWarpPitch]);
    sum = __fmul_rn(sum, unscale);
    if (args.x_scales != nullptr) sum = __fmul_rn(sum, args.x_scales[row * args.x_scales_stride]);
    if (w.bias != nullptr) sum = __fadd_rn(sum, w.bias[n]);
    StoreElement(args.y, args.y_type, row * args.y_stride + n, sum);
  }
}

// kColumns: groups of 8 rows of x. kDepth: units a warp has in flight. kHeld: a warp's units are at
// most kDepth, and their fragments of x stay in registers for every tile.
template <class Pairs, class Unit, int kColumns, int kTiles, int kDepth, bool kHeld>
__global__ void __launch_bounds__(kGemvWarps * 32, 1)
    GemvKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args) {
  extern __shared__ __align__(16) uint32_t shared[];
  const uint32_t* table = shared;
  constexpr int kBuffer = PartialBytes<kColumns, kTiles>() / 4;
  float* partials = reinterpret_cast<float*>(shared) + Unit::kTableBytes / 4;

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t tiles16 = (static_cast<int64_t>(w.n) + kUnitRows - 1) / kUnitRows;
  const int64_t tiles = (tiles16 + kTiles - 1) / kTiles;
  // Slots of a tile: a warp's units, filled up to whole rounds of its registers.
  const int rounds = (w.units + kGemvWarps * kDepth - 1) / (kGemvWarps * kDepth);

  Fragments<typename Unit::Inputs, kColumns> x[kHeld ? kDepth : 1];
  if constexpr (kHeld) {
#pragma unroll
    for (int slot = 0; slot < kDepth; ++slot) {
      const int32_t unit = warp + slot * kGemvWarps;
      if (unit < w.units) x[slot].Load(args, unit, lane);
    }
  }
  Unit units[kDepth][kTiles];
  const auto load = [&](int64_t tile, int slot, Unit(&to)[kTiles]) {
    const int32_t unit = warp + slot * kGemvWarps;
    if (unit >= w.units || tile >= tiles) return;
#pragma unroll
    for (int part = 0; part < kTiles; ++part) {
      // A tile past the last one repeats it; its sums are not stored.
      to[part].Load(w, min(tile * kTiles + part, tiles16 - 1), unit, lane);
    }
  };
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) load(blockIdx.x, slot, units[slot]);
  if constexpr (Unit::kTableBytes > 0) {
    Unit::FillTable(w, shared, blockDim.x);
    __syncthreads();
  }

  int buffer = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sums[kTiles][kColumns][4] = {};
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        const int slot = round * kDepth + depth;
        const int32_t unit = warp + slot * kGemvWarps;
        if (unit < w.units) {
          if constexpr (!kHeld) x[0].Load(args, unit, lane);
          MultiplyUnits<Pairs, Unit, kColumns, kTiles, 2>(w, table, units[depth],
                                                          x[kHeld ? depth : 0], sums);
        }
        const bool last_round = round + 1 == rounds;
        load(last_round ? tile + gridDim.x : tile, last_round ? depth : slot + kDepth,
             units[depth]);
      }
    }
    AddWarps<kColumns, kTiles>(w, args, tile, Unit::kUnscale, sums, partials + buffer * kBuffer);
    if constexpr (kPartialBuffers<Unit> == 2) {
      buffer ^= 1;
    } else {
      __syncthreads();
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CUH_
