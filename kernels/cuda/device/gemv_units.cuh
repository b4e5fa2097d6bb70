// How the GEMV kernel holds one packed unit of each format between loading and use.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_UNITS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_UNITS_CUH_

#include "kernels/cuda/device/args.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace nibble::cuda {

__device__ inline uint4 LoadStreaming(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ inline uint2 LoadStreaming8Bytes(const void* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from));
  return v;
}

// How a thread's part of x lies: of every 32 inputs and 8 rows 16 bytes, in the order in which a
// unit's Decode gives the inputs. `Load16` and `Load8` load that many bytes from a byte offset from
// the thread's row.
//
// Inputs 8t to 8t + 7 as they come.
struct PlainInputs {
  __device__ static int Offset(int lane) { return lane % 4 * 16; }
  template <class Load16, class Load8>
  __device__ static uint4 Part(Load16 load16, Load8, int i) {
    return load16(i * 64);
  }
};

// Pairs of inputs 0 and 2, 1 and 3, of the four from kPitch * t on and of the next: those kPitch =
// 8 are eight in a row, those of 4 lie 16 inputs apart.
template <int kPitch>
struct EvenOddInputs {
  __device__ static int Offset(int lane) { return lane % 4 * kPitch * 2; }
  template <class Load16, class Load8>
  __device__ static uint4 Part(Load16 load16, Load8 load8, int i) {
    uint4 v;
    if constexpr (kPitch == 8) {
      v = load16(i * 64);
    } else {
      const uint2 first = load8(i * 64);
      const uint2 second = load8(i * 64 + 32);
      v = make_uint4(first.x, first.y, second.x, second.y);
    }
    return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                      __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
  }
};

// Scales of rows r and r + 8, as stored: 16-bit ones share `x`.
__device__ inline uint2 LoadTiledScales(const WeightView& w, int64_t index) {
  if (w.scale_type == Element::kF32) {
    return __ldg(reinterpret_cast<const uint2*>(static_cast<const float*>(w.scales) + index));
  }
  return {__ldg(reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(w.scales) + index)),
          0};
}

// Without branches: a branch here would keep the units of a block's tiles from being interleaved.
__device__ inline float2 WidenHalfScales(bool bf16, uint32_t raw) {
  const float2 half = __half22float2(*reinterpret_cast<const __half2*>(&raw));
  return {bf16 ? __uint_as_float(raw << 16) : half.x,
          bf16 ? __uint_as_float(raw & 0xFFFF0000u) : half.y};
}

__device__ inline float2 WidenScales(const WeightView& w, uint2 raw) {
  const bool f32 = w.scale_type == Element::kF32;
  const float2 half = WidenHalfScales(w.scale_type == Element::kBF16, raw.x);
  return {f32 ? __uint_as_float(raw.x) : half.x, f32 ? __uint_as_float(raw.y) : half.y};
}

// What a codec holds of one unit between loading and use, and how it feeds the tensor cores.
// Decode(i) gives the fragments of 32 inputs from 32 i on: `low` of row g, `high` of row g + 8.
template <class Pairs, int kScales>
struct Int4Unit {
  using Inputs = PlainInputs;
  static constexpr int kScalesPerUnit = kScales;
  static constexpr float kUnscale = Int4Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  uint4 words[2];
  uint2 scales[kScales];
  uint32_t zeros[kScales];

  __device__ static void FillTable(const WeightView&, uint32_t*, int) {}
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
    Int4Words<Pairs>::Decode(i % 2 == 0 ? half.x : half.z, Int4Words<Pairs>::template Zero<0>(zero),
                             low);
    Int4Words<Pairs>::Decode(i % 2 == 0 ? half.y : half.w, Int4Words<Pairs>::template Zero<1>(zero),
                             high);
  }
};

// A byte is a pair of codes. 256 pairs, each replicated for every lane so that no two lanes meet in
// a bank, kPitch bytes apart: with 256 an address is one byte permutation, with 128 the table is
// half as large. The values are rounded to the activations' type.
template <class Pairs, int kScales, int kPitch = 256>
struct TableUnit {
  using Inputs = PlainInputs;
  static constexpr int kScalesPerUnit = kScales;
  static constexpr float kUnscale = 1.0f;
  static constexpr int kTableBytes = 256 * kPitch;
  uint4 words[2];
  uint2 scales[kScales];

  // By `threads` threads.
  __device__ static void FillTable(const WeightView& w, uint32_t* table, int threads) {
    for (int i = threadIdx.x; i < 256 * 32; i += threads) {
      const int byte = i / 32;
      table[byte * (kPitch / 4) + i % 32] = Pairs::Pair(w.table[byte & 15], w.table[byte >> 4]);
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
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      // Byte p of the word above the lane's offset, whose own byte 1 is 0: p * 256 is its place.
      uint32_t offset = __byte_perm(word, lane_bytes, 0x5504 + p * 0x10);
      if constexpr (kPitch == 128) offset = ((word >> (8 * p)) & 0xFFu) * 128u + lane_bytes;
      pairs[p] = *reinterpret_cast<const uint32_t*>(base + offset);
    }
  }
  __device__ void Decode(const WeightView&, const uint32_t* table, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    const uint4& half = words[i / 2];
    Lookup(table, i % 2 == 0 ? half.x : half.z, low);
    Lookup(table, i % 2 == 0 ? half.y : half.w, high);
  }
};

// Words of two rows, four inputs each, as fragments: inputs 0 and 2 of a word, then 1 and 3 (see
// EvenOddInputs).
template <class Pairs>
__device__ inline void DecodeFp8Words(uint32_t first, uint32_t second, uint32_t (&to)[4]) {
  uint32_t pairs[2];
  Fp8Words<Pairs>::Decode(first, pairs);
  to[0] = pairs[0];
  to[1] = pairs[1];
  Fp8Words<Pairs>::Decode(second, pairs);
  to[2] = pairs[0];
  to[3] = pairs[1];
}

template <class Pairs>
struct Fp8Unit {
  using Inputs = EvenOddInputs<8>;
  static constexpr int kScalesPerUnit = 1;
  static constexpr float kUnscale = Fp8Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  uint2 words[2][4];  // of rows g and g + 8
  float2 scale;

  // The scale of row n, of the last row for those past it, which are not stored.
  __device__ static const float* ScaleOf(const WeightView& w, int64_t n, int32_t unit) {
    const int64_t row = min(n, static_cast<int64_t>(w.n) - 1);
    return static_cast<const float*>(w.scales) + row / w.rows_per_scale * w.groups +
           unit * kUnitInputs / w.group_size;
  }

  __device__ static void FillTable(const WeightView&, uint32_t*, int) {}
  __device__ void Load(const WeightView& w, int64_t tile, int32_t unit, int lane) {
    const int64_t n = tile * kUnitRows + lane / 4;
    const char* from = static_cast<const char*>(w.codes) +
                       ByteOffset(w, static_cast<int32_t>(n), unit * kUnitInputs) + lane % 4 * 8;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[row][i] = LoadStreaming8Bytes(from + i * 32);
      from += int64_t{8} * w.units * kUnitInputs;
    }
    scale = {__ldg(ScaleOf(w, n, unit)), __ldg(ScaleOf(w, n + 8, unit))};
  }
  __device__ float2 Scale(const WeightView&, int) const { return scale; }
  __device__ void Decode(const WeightView&, const uint32_t*, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    DecodeFp8Words<Pairs>(words[0][i].x, words[0][i].y, low);
    DecodeFp8Words<Pairs>(words[1][i].x, words[1][i].y, high);
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_UNITS_CUH_
