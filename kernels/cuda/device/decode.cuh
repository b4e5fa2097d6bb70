// Exact decoding of eight consecutive inputs of a row: one binary32 product of code and scale, as
// FORMATS.md defines it. One codec a format; any group size, ragged edges and act-order included.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_DECODE_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_DECODE_CUH_

#include "kernels/cuda/device/element.cuh"

namespace nibble::cuda {

// value / divisor, by a shift where there is one.
__device__ inline int32_t Divide(int32_t value, int32_t divisor, int32_t shift) {
  return shift >= 0 ? value >> shift : value / divisor;
}

// Index of the scale of element (n, k).
__device__ inline int64_t ScaleIndex(const WeightView& w, int32_t n, int32_t k) {
  switch (w.scale_kind) {
    case ScaleKind::kFlat:
      return (static_cast<int64_t>(n) * w.k + k) >> w.block_shift;
    case ScaleKind::kTiled: {
      const int32_t group =
          w.group_index != nullptr ? w.group_index[k] : Divide(k, w.group_size, w.group_shift);
      return TiledIndex(w.groups, n, group);
    }
    case ScaleKind::kGrid:
      return static_cast<int64_t>(Divide(n, w.rows_per_scale, w.rows_shift)) * w.groups +
             Divide(k, w.group_size, w.group_shift);
    case ScaleKind::kNone:
      break;
  }
  return 0;
}

struct DenseCodec {
  static constexpr int kTableEntries = 1;
  __device__ static float TableEntry(const WeightView&, int) { return 0.0f; }
  __device__ static void Decode(const WeightView& w, const float*, int32_t n, int32_t k,
                                float (&out)[8]) {
    const int64_t row = static_cast<int64_t>(n) * w.k;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = k + i < w.k ? LoadElement(w.codes, w.dense_type, row + k + i) : 0.0f;
    }
  }
};

// Codes of a quantized format: `Code(raw, i)` is code i as a float before its scale.
template <class Format>
struct ScaledCodec {
  static constexpr int kTableEntries = Format::kTableEntries;
  __device__ static float TableEntry(const WeightView& w, int code) {
    return Format::TableEntry(w, code);
  }
  // Elements k..k+7 of row n; 0 past the end of the row. `table` holds kTableEntries values.
  __device__ static void Decode(const WeightView& w, const float* table, int32_t n, int32_t k,
                                float (&out)[8]) {
    const typename Format::Raw raw = Format::Load(w, n, k);
    // One scale for all eight where its groups are whole words.
    const bool shared =
        w.scale_kind == ScaleKind::kFlat
            ? w.k % 8 == 0
            : w.group_index == nullptr && (w.group_size % 8 == 0 || w.group_size >= w.k);
    int64_t index = ScaleIndex(w, n, k);
    float scale = LoadElement(w.scales, w.scale_type, index);
    float zero = Format::kHasZeroPoints && w.zero_points != nullptr ? w.zero_points[index] : 8.0f;
    if (shared && k + 8 <= w.k) {
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = __fmul_rn(Format::Code(raw, table, i, zero), scale);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (k + i >= w.k) {
        out[i] = 0.0f;
        continue;
      }
      if (!shared && i > 0) {
        index = ScaleIndex(w, n, k + i);
        scale = LoadElement(w.scales, w.scale_type, index);
        if (Format::kHasZeroPoints && w.zero_points != nullptr) zero = w.zero_points[index];
      }
      out[i] = __fmul_rn(Format::Code(raw, table, i, zero), scale);
    }
  }
};

struct Int4Format {
  using Raw = uint32_t;
  static constexpr int kTableEntries = 1;
  static constexpr bool kHasZeroPoints = true;
  __device__ static float TableEntry(const WeightView&, int) { return 0.0f; }
  __device__ static Raw Load(const WeightView& w, int32_t n, int32_t k) {
    return *reinterpret_cast<const uint32_t*>(static_cast<const char*>(w.codes) +
                                              WordOffset(w, n, k));
  }
  __device__ static float Code(Raw raw, const float*, int i, float zero) {
    const int shift = (i >> 1) * 4 + (i & 1) * 16;
    return static_cast<float>((raw >> shift) & 15u) - zero;
  }
};

struct TableFormat {
  using Raw = uint32_t;
  static constexpr int kTableEntries = 16;
  static constexpr bool kHasZeroPoints = false;
  __device__ static float TableEntry(const WeightView& w, int code) { return w.table[code]; }
  __device__ static Raw Load(const WeightView& w, int32_t n, int32_t k) {
    return Int4Format::Load(w, n, k);
  }
  __device__ static float Code(Raw raw, const float* table, int i, float) {
    return table[(raw >> (4 * i)) & 15u];
  }
};

struct Fp8Format {
  using Raw = uint2;
  static constexpr int kTableEntries = 1;
  static constexpr bool kHasZeroPoints = false;
  __device__ static float TableEntry(const WeightView&, int) { return 0.0f; }
  __device__ static Raw Load(const WeightView& w, int32_t n, int32_t k) {
    return *reinterpret_cast<const uint2*>(static_cast<const char*>(w.codes) + ByteOffset(w, n, k));
  }
  __device__ static float Code(Raw raw, const float*, int i, float) {
    const uint32_t word = i < 4 ? raw.x : raw.y;
    return E4M3ToFloat((word >> (8 * (i % 4))) & 0xFFu);
  }
};

using Int4Codec = ScaledCodec<Int4Format>;
using TableCodec = ScaledCodec<TableFormat>;
using Fp8Codec = ScaledCodec<Fp8Format>;

// Fills `table` (shared memory) for Codec; the caller synchronizes.
template <class Codec>
__device__ inline void FillTable(const WeightView& w, float* table) {
  if (threadIdx.x < Codec::kTableEntries) table[threadIdx.x] = Codec::TableEntry(w, threadIdx.x);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_DECODE_CUH_
