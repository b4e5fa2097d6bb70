#include "kernels/cpu/weight_ops.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/quantize_rows.h"
#include "nibble/numeric.h"

namespace nibble::cpu {
namespace {

// Work that is worth waking a thread for, in multiply-adds and in elements.
constexpr int64_t kGrainProducts = int64_t{1} << 18;
constexpr int64_t kGrainElements = int64_t{1} << 15;
// Decoding a weight costs about as much as this many multiply-adds.
constexpr int64_t kDecodeProducts = 8;
// Widened activations of one pass: enough rows to spread over threads where K is small.
constexpr int64_t kPassFloats = int64_t{1} << 21;

int64_t PassRows(int64_t m, int64_t k_padded) {
  const int64_t rows = kPassFloats / k_padded / kPanelRows * kPanelRows;
  return std::min(m, std::max(rows, kPanelRows));
}

const std::byte* RowAt(const ConstMatrixView& view, int64_t row) {
  return static_cast<const std::byte*>(view.data) + row * view.row_stride_bytes();
}

// Codes of x times the scales that came with them.
void DecodeActivations(const MatmulArgs& args, int64_t row, float* to) {
  const int64_t k = args.x.cols;
  LoadFloats(RowAt(args.x, row), args.x.dtype, k, to);
  const int64_t shared = args.activation == QuantMode::kPerGroup ? kQuantGroup : k;
  for (int64_t i = 0; i < k; i += shared) {
    const float scale = LoadAsFloat(RowAt(args.x_scales, row), DType::kF32, i / shared);
    const int64_t end = std::min(k, i + shared);
    for (int64_t j = i; j < end; ++j) to[j] *= scale;
  }
}

// Row `row` of x as binary32 in the order of the packed weight's positions, zeros past K.
void WidenRow(const MatmulArgs& args, const PackedWeight& weight, int64_t row, float* to) {
  const int64_t k = args.x.cols;
  std::fill(to + k, to + weight.k_padded, 0.0f);
  if (weight.columns != nullptr) {
    const auto* x = RowAt(args.x, row);
    for (int64_t i = 0; i < k; ++i) to[i] = LoadAsFloat(x, args.x.dtype, weight.columns[i]);
    return;
  }
  if (args.x.dtype == DType::kF8E4M3) {
    DecodeActivations(args, row, to);
    return;
  }
  LoadFloats(RowAt(args.x, row), args.x.dtype, k, to);
  if (args.activation != QuantMode::kNone) {
    QuantizeAndDecodeRow(to, k, {args.activation, args.static_scale});
  }
}

void RunPass(const MatmulArgs& args, const PackedWeight& weight, bool gemv, int64_t first_row,
             int64_t rows, float* x, std::span<float* const> scratch, ThreadPool& pool) {
  const int64_t k_padded = weight.k_padded;
  pool.ParallelRanges(rows, std::max<int64_t>(1, kGrainElements / k_padded),
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t m = begin; m < end; ++m) {
                          WidenRow(args, weight, first_row + m, x + m * k_padded);
                        }
                      });

  const int64_t panels_n = CeilDiv(weight.spec.n, kPanelOutputs);
  const int64_t panels_m = CeilDiv(rows, kPanelRows);
  const int64_t panel_products =
      kPanelOutputs * k_padded * (std::min(rows, kPanelRows) + kDecodeProducts);
  const int64_t grain = std::max<int64_t>(1, kGrainProducts / panel_products);
  pool.ParallelRanges(panels_n * panels_m, grain, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t m = task / panels_n * kPanelRows;
      MatmulPanel panel;
      panel.weight = &weight;
      panel.x = x + m * k_padded;
      panel.rows = std::min(kPanelRows, rows - m);
      panel.n_begin = task % panels_n * kPanelOutputs;
      panel.outputs = std::min(kPanelOutputs, weight.spec.n - panel.n_begin);
      panel.y = args.y;
      panel.y.data =
          static_cast<std::byte*>(args.y.data) + (first_row + m) * args.y.row_stride_bytes();
      panel.scratch = scratch[static_cast<size_t>(worker)];
      gemv ? GemvPanel(panel) : GemmPanel(panel);
    }
  });
}

void DequantizeRow(const PackedWeight& weight, int64_t n, DType dtype, std::byte* to) {
  const int64_t k = weight.spec.k;
  const auto element_bytes = static_cast<int64_t>(DTypeBytes(dtype));
  alignas(64) float decoded[kStepInputs];
  for (int64_t begin = 0; begin < k; begin += kStepInputs) {
    const int64_t count = std::min(kStepInputs, k - begin);
    DecodeRow(weight, n, begin, count, decoded);
    if (weight.columns == nullptr) {
      StoreFloats(decoded, count, dtype, to + begin * element_bytes);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        StoreFromFloat(to, dtype, weight.columns[begin + i], decoded[i]);
      }
    }
  }
}

}  // namespace

uint64_t MatmulWorkspaceBytes(int64_t m, int64_t k) {
  const int64_t k_padded = PadInputs(k);
  const auto row_bytes = CheckedMul(k_padded, sizeof(float));
  const auto bytes = CheckedMul(PassRows(m, k_padded), row_bytes.value_or(-1));
  return static_cast<uint64_t>(bytes.value_or(std::numeric_limits<int64_t>::max()));
}

void RunMatmul(const MatmulArgs& args, const PackedWeight& weight, bool gemv, void* workspace,
               std::span<float* const> scratch, ThreadPool& pool) {
  const int64_t m = args.x.rows;
  const int64_t pass_rows = PassRows(m, weight.k_padded);
  for (int64_t row = 0; row < m; row += pass_rows) {
    RunPass(args, weight, gemv, row, std::min(pass_rows, m - row), static_cast<float*>(workspace),
            scratch, pool);
  }
}

void RunDequantize(const DequantizeArgs& args, const PackedWeight& weight, ThreadPool& pool) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / weight.k_padded);
  pool.ParallelRanges(args.out.rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      DequantizeRow(weight, args.row_begin + row, args.out.dtype,
                    static_cast<std::byte*>(args.out.data) + row * args.out.row_stride_bytes());
    }
  });
}

}  // namespace nibble::cpu
