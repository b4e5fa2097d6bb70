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

#include "kernels/cuda/device/args.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace nibble::cuda {

inline constexpr int kGemvWarps = 16;

__device__ inline uint4 LoadStreaming(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Scales of rows r and r + 8, as stored: 16-bit ones share `x`.
__device__ inline uint2 LoadTiledScales(const WeightView& w, int64_t index) {
  if (w.scale_type == Element::kF32) {
    return __ldg(reinterpret_cast<const uint2*>(static_cast<const float*>(w.scales) + index));
  }
  return {__ldg(reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(w.scales) + index)),
          0};
}

__device__ inline float2 WidenScales(const WeightView& w, uint2 raw) {
  if (w.scale_type == Element::kF32) return {__uint_as_float(raw.x), __uint_as_float(raw.y)};
  if (w.scale_type == Element::kBF16) {
    return {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF0000u)};
  }
  return __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
}

// What a codec holds of one unit between loading and use, and how it feeds the tensor cores.
// Decode(i) gives the fragments of 32 inputs from 32 i on: `low` of row g, `high` of row g + 8.
template <class Pairs, int kScales>
struct Int4Unit {
  static constexpr int kScalesPerUnit = kScales;
  static constexpr float kUnscale = Int4Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  uint4 words[2];
  uint2 scales[kScales];
  uint32_t zeros[kScales];

  __device__ static void FillTable(const WeightView&, uint32_t*) {}
  __device__ void Load(const WeightView& w, int64_t tile, int32_t unit, int lane) {
    const char* from = static_cast<const char*>(w.codes) + (tile * w.units + unit) * 1024;
    words[0] = LoadStreaming(from + lane * 16);
    words[1] = LoadStreaming(from + 512 + lane * 16);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const int32_t group = kScales > 1 ? unit * kScales + i : unit * kUnitInputs / w.group_size;
      const int64_t index = (tile * w.groups + group) * kUnitRows + lane / 4 * 2;
      scales[i] = LoadTiledScales(w, index);
      zeros[i] = w.zero_points == nullptr
                     ? 0x0808u
                     : __ldg(reinterpret_cast<const uint16_t*>(w.zero_points + index));
    }
  }
  __device__ float2 Scale(const WeightView& w, int i) const { return WidenScales(w, scales[i]); }
  __device__ void Decode(const WeightView&, const uint32_t*, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    const uint32_t zero = zeros[i * kScales / 4];
    const uint4& half = words[i / 2];
    Int4Words<Pairs>::Decode(i % 2 == 0 ? half.x : half.z,
                             Int4Words<Pairs>::Zero(static_cast<float>(zero & 0xFFu)), low);
    Int4Words<Pairs>::Decode(i % 2 == 0 ? half.y : half.w,
                             Int4Words<Pairs>::Zero(static_cast<float>(zero >> 8)), high);
  }
};

// A byte is a pair of codes. 256 pairs, 256 bytes apart so that an address is one byte permutation,
// each replicated for every lane so that no two lanes meet in a bank. The values are rounded to the
// activations' type.
template <class Pairs, int kScales>
struct TableUnit {
  static constexpr int kScalesPerUnit = kScales;
  static constexpr float kUnscale = 1.0f;
  static constexpr int kTableBytes = 256 * 256;
  uint4 words[2];
  uint2 scales[kScales];

  __device__ static void FillTable(const WeightView& w, uint32_t* table) {
    for (int i = threadIdx.x; i < 256 * 32; i += blockDim.x) {
      const int byte = i / 32;
      table[byte * 64 + i % 32] = Pairs::Pair(w.table[byte & 15], w.table[byte >> 4]);
    }
  }
  __device__ void Load(const WeightView& w, int64_t tile, int32_t unit, int lane) {
    const char* from = static_cast<const char*>(w.codes) + (tile * w.units + unit) * 1024;
    words[0] = LoadStreaming(from + lane * 16);
    words[1] = LoadStreaming(from + 512 + lane * 16);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const int32_t group = kScales > 1 ? unit * kScales + i : unit * kUnitInputs / w.group_size;
      scales[i] = LoadTiledScales(w, (tile * w.groups + group) * kUnitRows + lane / 4 * 2);
    }
  }
  __device__ float2 Scale(const WeightView& w, int i) const { return WidenScales(w, scales[i]); }
  __device__ static void Lookup(const uint32_t* table, uint32_t word, uint32_t (&pairs)[4]) {
    const uint32_t lane_bytes = threadIdx.x % 32 * 4;
    const char* base = reinterpret_cast<const char*>(table);
    // Byte p of the word above the lane's offset: p * 256 is an entry's place.
    pairs[0] = *reinterpret_cast<const uint32_t*>(base + __byte_perm(word, lane_bytes, 0x5504));
    pairs[1] = *reinterpret_cast<const uint32_t*>(base + __byte_perm(word, lane_bytes, 0x5514));
    pairs[2] = *reinterpret_cast<const uint32_t*>(base + __byte_perm(word, lane_bytes, 0x5524));
    pairs[3] = *reinterpret_cast<const uint32_t*>(base + __byte_perm(word, lane_bytes, 0x5534));
  }
  __device__ void Decode(const WeightView&, const uint32_t* table, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    const uint4& half = words[i / 2];
    // __byte_perm counts the bytes of its second argument from 4; byte 5 of the lane offset is 0.
    Lookup(table, i % 2 == 0 ? half.x : half.z, low);
    Lookup(table, i % 2 == 0 ? half.y : half.w, high);
  }
};

template <class Pairs>
struct Fp8Unit {
  static constexpr int kScalesPerUnit = 1;
  static constexpr float kUnscale = Fp8Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  uint4 words[4];
  float2 scale;

  __device__ static void FillTable(const WeightView&, uint32_t*) {}
  __device__ void Load(const WeightView& w, int64_t tile, int32_t unit, int lane) {
    const char* from = static_cast<const char*>(w.codes) + (tile * w.units + unit) * 2048;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = LoadStreaming(from + i * 512 + lane * 16);
    // Rows past the last one read its scale and are not stored.
    const auto* scales = static_cast<const float*>(w.scales);
    const int32_t group = unit * kUnitInputs / w.group_size;
    const auto n = static_cast<int32_t>(tile) * kUnitRows + lane / 4;
    scale.x =
        __ldg(scales + static_cast<int64_t>(min(n, w.n - 1) / w.rows_per_scale) * w.groups + group);
    scale.y = __ldg(
        scales + static_cast<int64_t>(min(n + 8, w.n - 1) / w.rows_per_scale) * w.groups + group);
  }
  __device__ float2 Scale(const WeightView&, int) const { return scale; }
  __device__ void Decode(const WeightView&, const uint32_t*, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    uint32_t pairs[2];
    Fp8Words<Pairs>::Decode(words[i].x, pairs);
    low[0] = pairs[0];
    low[1] = pairs[1];
    Fp8Words<Pairs>::Decode(words[i].y, pairs);
    low[2] = pairs[0];
    low[3] = pairs[1];
    Fp8Words<Pairs>::Decode(words[i].z, pairs);
    high[0] = pairs[0];
    high[1] = pairs[1];
    Fp8Words<Pairs>::Decode(words[i].w, pairs);
    high[2] = pairs[0];
    high[3] = pairs[1];
  }
};

// Columns of x that a thread needs of one unit: 16 bytes for each 32 inputs and 8 rows.
template <int kColumns>
struct Fragments {
  uint4 part[kColumns][4];

  __device__ void Load(const GemvArgs& args, int32_t unit, int lane) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const int row = column * 8 + lane / 4;
      const auto* from = static_cast<const uint16_t*>(args.x) + row * args.x_stride +
                         unit * kUnitInputs + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        part[column][i] =
            row < args.m ? *reinterpret_cast<const uint4*>(from + i * 32) : make_uint4(0, 0, 0, 0);
      }
    }
  }
};

// sums[column][..] += scale * (16 rows of the unit x 8 rows of x).
template <class Pairs, class Unit, int kColumns>
__device__ inline void MultiplyUnit(const WeightView& w, const uint32_t* table, const Unit& unit,
                                    const Fragments<kColumns>& x, float (&sums)[kColumns][4]) {
  constexpr int kPartsPerScale = 4 / Unit::kScalesPerUnit;
#pragma unroll
  for (int group = 0; group < Unit::kScalesPerUnit; ++group) {
    float partial[kColumns][4] = {};
#pragma unroll
    for (int i = group * kPartsPerScale; i < (group + 1) * kPartsPerScale; ++i) {
      uint32_t low[4];
      uint32_t high[4];
      unit.Decode(w, table, i, low, high);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const uint4& b = x.part[column][i];
        Pairs::Mma(partial[column], low[0], high[0], low[1], high[1], b.x, b.y);
        Pairs::Mma(partial[column], low[2], high[2], low[3], high[3], b.z, b.w);
      }
    }
    float2 scale = unit.Scale(w, group);
    scale.x *= Unit::kUnscale;
    scale.y *= Unit::kUnscale;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      sums[column][0] = __fmaf_rn(scale.x, partial[column][0], sums[column][0]);
      sums[column][1] = __fmaf_rn(scale.x, partial[column][1], sums[column][1]);
      sums[column][2] = __fmaf_rn(scale.y, partial[column][2], sums[column][2]);
      sums[column][3] = __fmaf_rn(scale.y, partial[column][3], sums[column][3]);
    }
  }
}

// Buffers of partial sums: beside a table there is room for one on every architecture.
template <class Unit>
inline constexpr int kPartialBuffers = Unit::kTableBytes > 0 ? 1 : 2;

// Bytes of dynamic shared memory: the table, then the warps' partial sums.
template <class Unit, int kColumns, int kTiles>
constexpr int GemvSharedBytes() {
  return Unit::kTableBytes +
         kPartialBuffers<Unit> * kGemvWarps * kColumns * 8 * (kTiles * kUnitRows + 4) * 4;
}

// kColumns: groups of 8 rows of x. kDepth: units a warp has in flight. kHeld: a warp's units are at
// most kDepth, and their fragments of x stay in registers for every tile.
template <class Pairs, class Unit, int kColumns, int kTiles, int kDepth, bool kHeld>
__global__ void __launch_bounds__(kGemvWarps * 32, 1)
    GemvKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args) {
  extern __shared__ __align__(16) uint32_t shared[];
  const uint32_t* table = shared;
  constexpr int kRows = kTiles * kUnitRows;
  constexpr int kRowPitch = kRows + 4;
  constexpr int kBuffer = kGemvWarps * kColumns * 8 * kRowPitch;
  float* partials = reinterpret_cast<float*>(shared) + Unit::kTableBytes / 4;

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t tiles16 = (static_cast<int64_t>(w.n) + kUnitRows - 1) / kUnitRows;
  const int64_t tiles = (tiles16 + kTiles - 1) / kTiles;
  // Slots of a tile: a warp's units, filled up to whole rounds of its registers.
  const int rounds = (w.units + kGemvWarps * kDepth - 1) / (kGemvWarps * kDepth);

  Fragments<kColumns> x[kHeld ? kDepth : 1];
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
    Unit::FillTable(w, shared);
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
#pragma unroll
          for (int part = 0; part < kTiles; ++part) {
            MultiplyUnit<Pairs, Unit, kColumns>(w, table, units[depth][part], x[kHeld ? depth : 0],
                                                sums[part]);
          }
        }
        const bool last_round = round + 1 == rounds;
        load(last_round ? tile + gridDim.x : tile, last_round ? depth : slot + kDepth,
             units[depth]);
      }
    }
    // partials[buffer][warp][row of x][output]
    float* mine = partials + buffer * kBuffer + warp * kColumns * 8 * kRowPitch;
#pragma unroll
    for (int part = 0; part < kTiles; ++part) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = column * 8 + lane % 4 * 2 + (i & 1);
          mine[row * kRowPitch + part * kUnitRows + lane / 4 + (i >> 1) * 8] =
              sums[part][column][i];
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
      const float* from = partials + buffer * kBuffer + row * kRowPitch + output;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kGemvWarps; ++i) {
        sum = __fadd_rn(sum, from[i * kColumns * 8 * kRowPitch]);
      }
      if (w.bias != nullptr) sum = __fadd_rn(sum, w.bias[n]);
      StoreElement(args.y, args.y_type, row * args.y_stride + n, sum);
    }
    if constexpr (kPartialBuffers<Unit> == 2) {
      buffer ^= 1;
    } else {
      __syncthreads();
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_CUH_
