// The inner loops over a packed weight: decoding it to binary32, and y = x W^T by panels of
// outputs.
//
// Order of accumulation, the same in every kernel and for every number of rows or threads, so that
// a row's bits depend on nothing but the row: 16 binary32 lanes per output; input position k is
// fused multiply-added (on machines that have it) to lane k mod 16 in ascending k; the lanes are
// summed pairwise, i with i + 8, then i + 4, i + 2, i + 1; the bias is added; the sum is rounded to
// y.dtype.
#ifndef NIBBLE_KERNELS_CPU_MATMUL_H_
#define NIBBLE_KERNELS_CPU_MATMUL_H_

#include <cstdint>

#include "kernels/cpu/packed_weight.h"
#include "nibble/tensor.h"

namespace nibble::cpu {

inline constexpr int64_t kLanes = 16;           // accumulators of one output
inline constexpr int64_t kPanelOutputs = 24;    // outputs of one task; a multiple of every tile
inline constexpr int64_t kPanelRows = 128;      // rows of one task
inline constexpr int64_t kStepInputs = 512;     // inputs decoded at a time
inline constexpr int64_t kPanelScratchFloats =  // decoded weights, then accumulators
    kPanelOutputs * kStepInputs + kPanelRows * kPanelOutputs * kLanes;

// out[i] = decoded weight at row n, position k_begin + i, for i in [0, count). k_begin is a
// multiple of 32; `out` has room for `count` rounded up to 32, and elements past the row's end are
// 0.
void DecodeRow(const PackedWeight& weight, int64_t n, int64_t k_begin, int64_t count, float* out);

// One task of a matmul: x rows [rows, k_padded] with zeros past K, outputs [n_begin, n_begin +
// outputs), y [rows, N] whose column n_begin is written first.
struct MatmulPanel {
  const PackedWeight* weight = nullptr;
  const float* x = nullptr;
  int64_t rows = 0;  // at most kPanelRows
  int64_t n_begin = 0;
  int64_t outputs = 0;  // at most kPanelOutputs
  MatrixView y;
  float* scratch = nullptr;  // kPanelScratchFloats, aligned to 64 bytes
};

// For few rows: a tile of outputs is decoded into the first-level cache and used at once.
void GemvPanel(const MatmulPanel& panel);
// For many rows: the panel's outputs are decoded once for all rows.
void GemmPanel(const MatmulPanel& panel);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_MATMUL_H_
