// Dequantize at the speed of memory: whole words of a weight in units (weight_view.cuh), scales
// that cover whole words. dequantize.cuh takes the rest.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_UNITS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_UNITS_CUH_

#include "kernels/cuda/device/decode.cuh"

namespace nibble::cuda {

inline constexpr int kDequantizeUnitsThreads = 256;

// How a thread reads a unit: `Pair` is the words of rows g and g + 8 that hold inputs 8 * chunk to
// 8
// * chunk + 7. Sixteen lanes that take the chunks of one g read whole 128-byte lines, and each of
// their stores fills 256 bytes of a row.
struct TableUnits {
  using Pair = uint2;
  using Word = uint32_t;
  static constexpr bool kHasTable = true;
  static constexpr bool kHasZeroPoints = false;
  static constexpr bool kHasGridScales = false;

  // The two words lie side by side.
  __device__ static Pair Load(const WeightView& w, int32_t tile, int32_t unit, int g, int chunk) {
    const int offset = (chunk >> 3) * 512 + g * 64 + (chunk & 3) * 16 + ((chunk >> 2) & 1) * 8;
    const int64_t at = (static_cast<int64_t>(tile) * w.units + unit) * 1024 + offset;
    return __ldcs(reinterpret_cast<const Pair*>(static_cast<const char*>(w.codes) + at));
  }
  __device__ static Word Of(const Pair& pair, int row) { return row == 0 ? pair.x : pair.y; }
  // Four inputs of a word from input 4 * half on, where Decode expects the first.
  __device__ static Word Half(Word word, int half) { return word >> (16 * half); }

  // `table`: 32 copies of each entry side by side, one a lane.
  template <int kCount>
  __device__ static void Decode(Word word, const float* table, float, float (&v)[kCount]) {
    const auto* bytes = reinterpret_cast<const char*>(table);
    const uint32_t lane_offset = threadIdx.x % 32 * 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t shifted = i < 2 ? word << (7 - 4 * i) : word >> (4 * i - 7);
      v[i] = *reinterpret_cast<const float*>(bytes + ((shifted & 0x780u) | lane_offset));
    }
  }
};

struct Int4Units : TableUnits {
  static constexpr bool kHasTable = false;
  static constexpr bool kHasZeroPoints = true;

  __device__ static Word Half(Word word, int half) { return word >> (8 * half); }

  template <int kCount>
  __device__ static void Decode(Word word, const float*, float zero, float (&v)[kCount]) {
    // Code and 2^23 in one binary32; the difference is exact.
    const float base = __fadd_rn(0x1p23f, zero);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int shift = (i >> 1) * 4 + (i & 1) * 16;
      v[i] = __fsub_rn(__uint_as_float(((word >> shift) & 15u) | 0x4B000000u), base);
    }
  }
};

struct Fp8Units {
  using Pair = uint4;
  using Word = uint2;
  static constexpr bool kHasTable = false;
  static constexpr bool kHasZeroPoints = false;
  static constexpr bool kHasGridScales = true;

  __device__ static Pair Load(const WeightView& w, int32_t tile, int32_t unit, int g, int chunk) {
    const char* low = static_cast<const char*>(w.codes) +
                      ByteOffset(w, tile * kUnitRows + g, unit * kUnitInputs + chunk * 8);
    const Word a = __ldcs(reinterpret_cast<const Word*>(low));
    const Word b = __ldcs(reinterpret_cast<const Word*>(low + int64_t{8} * w.units * kUnitInputs));
    return make_uint4(a.x, a.y, b.x, b.y);
  }
  __device__ static Word Of(const Pair& pair, int row) {
    return row == 0 ? make_uint2(pair.x, pair.y) : make_uint2(pair.z, pair.w);
  }
  __device__ static Word Half(Word word, int half) {
    return half == 0 ? word : make_uint2(word.y, 0);
  }

  template <int kCount>
  __device__ static void Decode(Word word, const float*, float, float (&v)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const uint32_t codes = i == 0 ? word.x : word.y;
      const float2 first = Widen(codes & 0xFFFFu);
      const float2 second = Widen(codes >> 16);
      v[i] = first.x;
      v[i + 1] = first.y;
      v[i + 2] = second.x;
      v[i + 3] = second.y;
    }
  }

 private:
  __device__ static float2 Widen(uint32_t two_codes) {
    const auto codes = static_cast<__nv_fp8x2_storage_t>(two_codes);
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
  }
};

// Scales and zero points of rows n and n + 8 as they lie in memory: nothing waits for one load
// before it asks for the next.
struct ScalePairBits {
  uint2 scales = {};        // one each of 4 bytes, or both in x
  uint16_t zeros = 0x0808;  // one byte each
};

template <class Units>
__device__ inline ScalePairBits LoadScalePair(const WeightView& w, int32_t n, int32_t k) {
  ScalePairBits bits;
  const int32_t group = Divide(k, w.group_size, w.group_shift);
  if (Units::kHasGridScales) {
    const auto* scales = static_cast<const uint32_t*>(w.scales);
    const auto index = [&](int32_t row) {
      const int64_t band = Divide(min(row, w.n - 1), w.rows_per_scale, w.rows_shift);
      return band * w.groups + group;
    };
    bits.scales = make_uint2(scales[index(n)], scales[index(n + 8)]);
    return bits;
  }
  const int64_t index = TiledIndex(w.groups, n, group);
  if (w.scale_type == Element::kF32) {
    bits.scales = *reinterpret_cast<const uint2*>(static_cast<const uint32_t*>(w.scales) + index);
  } else {
    bits.scales.x =
        *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(w.scales) + index);
  }
  if (Units::kHasZeroPoints && w.zero_points != nullptr) {
    bits.zeros = *reinterpret_cast<const uint16_t*>(w.zero_points + index);
  }
  return bits;
}

__device__ inline float2 WidenScales(const WeightView& w, const ScalePairBits& bits) {
  switch (w.scale_type) {
    case Element::kBF16:
      return make_float2(__uint_as_float(bits.scales.x << 16),
                         __uint_as_float(bits.scales.x & 0xFFFF0000u));
    case Element::kF16:
      return __half22float2(reinterpret_cast<const __half2&>(bits.scales.x));
    default:
      return make_float2(__uint_as_float(bits.scales.x), __uint_as_float(bits.scales.y));
  }
}

// Times that a thread reads and writes: two where a load is only 8 bytes for 32 of output.
template <class Units, class Out>
inline constexpr int kDequantizeSteps = sizeof(typename Units::Pair) == 8 && sizeof(Out) == 2 ? 2
                                                                                              : 1;

// out [rows, out_cols] = rows from row_begin on, columns past K as 0; 16 bytes of `out` a lane, row
// and step. K and out_cols are multiples of 8, rows of `out` are aligned to 16 bytes, no group
// index.
template <class Units, class Out>
__global__ void __launch_bounds__(kDequantizeUnitsThreads)
    DequantizeUnitsKernel(const __grid_constant__ WeightView w, int32_t row_begin, int32_t rows,
                          Out* out, int64_t out_stride, int32_t out_cols) {
  constexpr int kCount = 16 / sizeof(Out);       // elements a lane and row
  constexpr int kLanesOfRow = 128 / kCount;      // 16, or 32 for binary32
  constexpr int kRowsOfWarp = 32 / kLanesOfRow;  // of the eight g, in one step
  constexpr int kSteps = kDequantizeSteps<Units, Out>;
  constexpr int kWarpsOfUnit = 8 / kRowsOfWarp / kSteps;
  constexpr uint32_t kUnitsOfBlock = kDequantizeUnitsThreads / 32 / kWarpsOfUnit;
  __shared__ float table[Units::kHasTable ? 16 * 32 : 1];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t units = (static_cast<uint32_t>(out_cols) + kUnitInputs - 1) / kUnitInputs;
  const uint32_t unit = blockIdx.x * kUnitsOfBlock + warp / kWarpsOfUnit;
  const auto tile = static_cast<int32_t>(row_begin / kUnitRows + unit / units);
  const auto unit_of_tile = static_cast<int32_t>(unit % units);
  const int first_g = warp % kWarpsOfUnit * kSteps * kRowsOfWarp + lane / kLanesOfRow;
  const int32_t first_row = tile * kUnitRows;
  const int unit_col = lane % kLanesOfRow * kCount;
  const int chunk = unit_col / 8;
  const int32_t k = unit_of_tile * kUnitInputs + chunk * 8;

  // Loads first: the table's barrier waits with them.
  typename Units::Pair pair[kSteps] = {};
  ScalePairBits scales[kSteps];
  if (k < w.k && first_row < w.n) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int g = first_g + step * kRowsOfWarp;
      pair[step] = Units::Load(w, tile, unit_of_tile, g, chunk);
      scales[step] = LoadScalePair<Units>(w, first_row + g, k);
    }
  }
  if constexpr (Units::kHasTable) {
    for (int i = static_cast<int>(threadIdx.x); i < 16 * 32; i += kDequantizeUnitsThreads) {
      table[i] = w.table[i / 32];
    }
    __syncthreads();
  }
  if (k >= out_cols) return;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const float2 scale = WidenScales(w, scales[step]);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int32_t at = first_row + first_g + step * kRowsOfWarp + 8 * row - row_begin;
      if (at < 0 || at >= rows) continue;
      float v[kCount];
      Units::Decode(Units::Half(Units::Of(pair[step], row), unit_col % 8 / 4), table,
                    static_cast<float>((scales[step].zeros >> (8 * row)) & 0xFF), v);
      uint4 packed;
      auto* elements = reinterpret_cast<Out*>(&packed);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        elements[i] = FromFloat<Out>(__fmul_rn(v[i], row == 0 ? scale.x : scale.y));
      }
      if (k >= w.k) packed = {};
      auto* to =
          reinterpret_cast<uint4*>(out + at * out_stride + unit_of_tile * kUnitInputs + unit_col);
      __stcs(to, packed);
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_UNITS_CUH_
