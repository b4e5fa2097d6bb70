// Repacking of canonical weights (FORMATS.md) into the layout of weight_view.cuh.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_PACK_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_PACK_CUH_

#include "kernels/cuda/device/element.cuh"

namespace nibble::cuda {

// Source bytes of rows [row_begin, row_end), row_begin % 16 == 0: `bytes` starts at the byte that
// holds the first code of row_begin.
struct CanonicalCodes {
  const uint8_t* bytes = nullptr;
  int64_t row_bytes = 0;     // INT4, FP8
  int64_t first_nibble = 0;  // tables: flat index of the first nibble of `bytes`
  int32_t row_begin = 0;
  int32_t row_end = 0;
};

__device__ inline uint32_t CanonicalCode(const WeightView& w, const CanonicalCodes& from, int32_t n,
                                         int32_t k) {
  if (w.codes_kind == Codes::kFP8) {
    return from.bytes[(n - from.row_begin) * from.row_bytes + k];
  }
  if (w.codes_kind == Codes::kInt4) {
    const uint32_t byte = from.bytes[(n - from.row_begin) * from.row_bytes + k / 2];
    return k % 2 == 0 ? byte & 15u : byte >> 4;
  }
  const int64_t index = static_cast<int64_t>(n) * w.k + k - from.first_nibble;
  const uint32_t byte = from.bytes[index / 2];
  return index % 2 == 0 ? byte >> 4 : byte & 15u;
}

// One thread packs inputs k..k+7 of one row. `to` is the whole weight's codes. An FP8 row with a
// NaN among its codes gets a NaN bias: its outputs are NaN whatever the activations are, and the
// decoders of the tensor-core kernels need not know of NaN.
__global__ void PackCodesKernel(const __grid_constant__ WeightView w, CanonicalCodes from, void* to,
                                float* bias) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int32_t groups_of_8 = w.units * (kUnitInputs / 8);
  const int64_t row = from.row_begin + index / groups_of_8;
  const int32_t k = static_cast<int32_t>(index % groups_of_8) * 8;
  if (row >= PaddedRows(from.row_end)) return;
  const auto n = static_cast<int32_t>(row);
  uint32_t codes[8] = {};
  if (n < from.row_end) {
    for (int i = 0; i < 8; ++i) {
      if (k + i >= w.k) break;
      const int32_t column = w.column_order == nullptr ? k + i : w.column_order[k + i];
      codes[i] = CanonicalCode(w, from, n, column);
    }
  }
  auto* bytes = static_cast<char*>(to);
  if (w.codes_kind == Codes::kFP8) {
    uint32_t words[2] = {};
    for (int i = 0; i < 8; ++i) {
      words[i / 4] |= codes[i] << (8 * (i % 4));
      if ((codes[i] & 0x7Fu) == 0x7Fu) bias[n] = __uint_as_float(0x7FC00000u);
    }
    *reinterpret_cast<uint2*>(bytes + ByteOffset(w, n, k)) = make_uint2(words[0], words[1]);
    return;
  }
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const int shift = w.codes_kind == Codes::kInt4 ? (i >> 1) * 4 + (i & 1) * 16 : 4 * i;
    word |= codes[i] << shift;
  }
  *reinterpret_cast<uint32_t*>(bytes + WordOffset(w, n, k)) = word;
}

// absmax[b] = f32(f32(map[code] * nested_scale) + offset).
__global__ void ExpandAbsmaxKernel(const uint8_t* codes, const float* map, const float* nested,
                                   int64_t nested_block, float offset, int64_t count,
                                   float* absmax) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  absmax[i] = __fadd_rn(__fmul_rn(map[codes[i]], nested[i / nested_block]), offset);
}

// Row-major [N, groups], each `repeat` times, into tiles of 16 rows, [N/16][to_groups][16]; the
// padding becomes 0.
template <class T>
__global__ void TileKernel(const T* from, int32_t n, int32_t groups, int32_t repeat, T* to,
                           int32_t to_groups) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = index / to_groups;
  const auto group = static_cast<int32_t>(index % to_groups);
  if (row >= PaddedRows(n)) return;
  const int32_t source = group / repeat;
  const bool real = row < n && source < groups;
  to[TiledIndex(to_groups, static_cast<int32_t>(row), group)] =
      real ? from[row * groups + source] : T{};
}

// to[row * to_stride + col] = from[row * from_stride + col] in binary32.
__global__ void WidenKernel(const void* from, Element type, int64_t from_stride, int64_t rows,
                            int64_t cols, float* to, int64_t to_stride) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * cols) return;
  const int64_t row = i / cols;
  const int64_t col = i % cols;
  to[row * to_stride + col] = LoadElement(from, type, row * from_stride + col);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_PACK_CUH_
