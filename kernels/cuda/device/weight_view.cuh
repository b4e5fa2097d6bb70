// A weight in device memory as the kernels see it, and where each code and scale of it lies.
//
// Codes of 4 bits lie in units of 16 rows x 128 inputs, in the order [N/16][K/128], padded with
// zeros. A unit is what one warp multiplies: lane (g = lane / 4, t = lane % 4) owns the codes of
// rows g and g + 8 that it feeds to mma.m16n8k16, so that a fragment is one 16-byte load.
//
//   4-bit unit, 1 KB: [2 halves of 64 inputs][32 lanes][4 words]; word = 2 * (32 inputs) + (row /
//   8).
//     A word holds 8 inputs from 8t on. INT4: input 2p at bit 4p, 2p + 1 at bit 16 + 4p. Tables:
//     input i at bit 4i, so that a byte is a pair.
//   FP8: row-major, [16 ceil(N/16)][128 ceil(K/128)] bytes, padded with zeros: as cuBLASLt and the
//     copies of tiles by tensor map take it.
//   dense: [N, K] elements, row-major.
//
// Scales of ScaleKind::kTiled and zero points lie in tiles of 16 rows, [N/16][groups][16], rows r
// and r + 8 side by side.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_WEIGHT_VIEW_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_WEIGHT_VIEW_CUH_

#include <cstdint>

#include <cuda_runtime.h>

namespace nibble::cuda {

// In the order of nibble::DType.
enum class Element : int { kF32, kF16, kBF16, kF8E4M3, kI8 };

enum class Codes : int { kDense, kTable, kInt4, kFP8 };

enum class ScaleKind : int {
  kNone,
  kFlat,   // one per 2^block_shift flat elements
  kTiled,  // one per row and group of inputs
  kGrid,   // one per rows_per_scale x group_size rectangle, row-major
};

inline constexpr int kUnitRows = 16;
inline constexpr int kUnitInputs = 128;

struct WeightView {
  Codes codes_kind = Codes::kDense;
  Element dense_type = Element::kF32;
  ScaleKind scale_kind = ScaleKind::kNone;
  Element scale_type = Element::kF32;
  int32_t n = 0;
  int32_t k = 0;
  int32_t units = 0;  // ceil(k / 128)
  int32_t block_shift = 0;
  int32_t group_size = 1;    // inputs a scale covers; at least k: all
  int32_t groups = 1;        // stored groups of a row
  int32_t group_shift = -1;  // log2(group_size), or -1
  int32_t rows_per_scale = 1;
  int32_t rows_shift = -1;  // log2(rows_per_scale), or -1
  const void* codes = nullptr;
  const void* scales = nullptr;
  const uint8_t* zero_points = nullptr;  // null: 8
  const int32_t* group_index = nullptr;  // [K], null: k / group_size
  // [K], null: as they come. Act-order: inputs are stored sorted by group; stored input k is input
  // column_order[k] of the weight.
  const int32_t* column_order = nullptr;
  const int32_t* column_place = nullptr;  // its inverse: where input k is stored
  const float* bias = nullptr;            // [N] or null
  float table[16] = {};                   // kTable: the value of each code
};

// Tiles of kUnitRows outputs.
__host__ __device__ inline int32_t Tiles16(const WeightView& w) {
  return (w.n + kUnitRows - 1) / kUnitRows;
}

// `rows` filled up to whole units.
__host__ __device__ inline int64_t PaddedRows(int64_t rows) {
  return (rows + kUnitRows - 1) / kUnitRows * kUnitRows;
}

// Bytes from the start of a 4-bit weight to the word of row n that holds inputs k..k+7, k % 8 == 0.
__host__ __device__ inline int64_t WordOffset(const WeightView& w, int32_t n, int32_t k) {
  const int64_t unit = static_cast<int64_t>(n >> 4) * w.units + (k >> 7);
  const int lane = (n & 7) * 4 + ((k >> 3) & 3);
  const int word = ((k >> 5) & 1) * 2 + ((n >> 3) & 1);
  return unit * 1024 + ((k >> 6) & 1) * 512 + lane * 16 + word * 4;
}

// The same for the byte of input k of an FP8 weight.
__host__ __device__ inline int64_t ByteOffset(const WeightView& w, int32_t n, int32_t k) {
  return static_cast<int64_t>(n) * w.units * kUnitInputs + k;
}

// Index of row n's scale or zero point of `group` in a tiled array.
__host__ __device__ inline int64_t TiledIndex(int32_t groups, int32_t n, int32_t group) {
  return (static_cast<int64_t>(n >> 4) * groups + group) * kUnitRows + (n & 7) * 2 + ((n >> 3) & 1);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_WEIGHT_VIEW_CUH_
