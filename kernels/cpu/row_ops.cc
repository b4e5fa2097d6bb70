#include "kernels/cpu/row_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/quantize_rows.h"

namespace nibble::cpu {
namespace {

// Elements that are worth waking a thread for.
constexpr int64_t kGrainElements = int64_t{1} << 15;
constexpr int64_t kBlock = 256;

template <typename Void>
auto* RowAt(const BasicMatrixView<Void>& view, int64_t row) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  return static_cast<Byte*>(view.data) + row * view.row_stride_bytes();
}

float SumOfSquares(const float* h, int64_t d) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += h[i + lane] * h[i + lane];
  }
  for (; i < d; ++i) lanes[i % kLanes] += h[i] * h[i];
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Multiplies v [count] by elements [first, first + count) of `factors`, and rounds to `dtype`.
void MultiplyAndRound(float* v, int64_t count, const std::byte* factors, DType factors_dtype,
                      DType dtype) {
  const auto factor_bytes = static_cast<int64_t>(DTypeBytes(factors_dtype));
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t size = std::min(kBlock, count - i);
    float block[kBlock];
    LoadFloats(factors + i * factor_bytes, factors_dtype, size, block);
    for (int64_t j = 0; j < size; ++j) v[i + j] *= block[j];
    RoundRow(v + i, size, dtype);
  }
}

void AddAndRound(float* v, int64_t count, const std::byte* addends, DType dtype) {
  const auto bytes = static_cast<int64_t>(DTypeBytes(dtype));
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t size = std::min(kBlock, count - i);
    float block[kBlock];
    LoadFloats(addends + i * bytes, dtype, size, block);
    for (int64_t j = 0; j < size; ++j) v[i + j] += block[j];
    RoundRow(v + i, size, dtype);
  }
}

void Finish(const float* v, int64_t d, int64_t row, const OutputQuant& quant, const MatrixView& y,
            const MatrixView& scales) {
  if (quant.mode == QuantMode::kNone) {
    StoreFloats(v, d, y.dtype, RowAt(y, row));
    return;
  }
  void* row_scales = scales.empty() ? nullptr : RowAt(scales, row);
  QuantizeRow(v, d, quant, y.dtype, RowAt(y, row), row_scales);
}

void NormRow(const NormQuantArgs& args, int64_t row, float* v) {
  const DType dtype = args.x.dtype;
  const int64_t d = args.x.cols;
  LoadFloats(RowAt(args.x, row), dtype, d, v);
  if (!args.residual.empty()) {
    AddAndRound(v, d, RowAt(args.residual, row), dtype);
    StoreFloats(v, d, dtype, RowAt(args.residual_out, row));
  }
  const float mean = SumOfSquares(v, d) / static_cast<float>(d);
  const float rsqrt = 1.0f / std::sqrt(mean + args.epsilon);
  for (int64_t i = 0; i < d; ++i) v[i] *= rsqrt;
  RoundRow(v, d, dtype);
  MultiplyAndRound(v, d, RowAt(args.gamma, 0), args.gamma.dtype, dtype);
  Finish(v, d, row, args.quant, args.y, args.scales);
}

void SiluMulRow(const SiluMulQuantArgs& args, int64_t row, float* v) {
  const DType dtype = args.x.dtype;
  const int64_t d = args.x.cols / 2;
  const auto* gate = RowAt(args.x, row);
  LoadFloats(gate, dtype, d, v);
  for (int64_t i = 0; i < d; ++i) v[i] = v[i] / (1.0f + std::exp(-v[i]));
  RoundRow(v, d, dtype);
  MultiplyAndRound(v, d, gate + d * static_cast<int64_t>(DTypeBytes(dtype)), dtype, dtype);
  Finish(v, d, row, args.quant, args.y, args.scales);
}

template <class Args>
void RunRows(const Args& args, int64_t d, void* workspace, ThreadPool& pool,
             void (*run_row)(const Args&, int64_t, float*)) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / d);
  pool.ParallelRanges(args.x.rows, grain, [&](int64_t begin, int64_t end, int worker) {
    float* v = static_cast<float*>(workspace) + worker * d;
    for (int64_t row = begin; row < end; ++row) run_row(args, row, v);
  });
}

}  // namespace

uint64_t RowOpWorkspaceBytes(int64_t d, int threads) {
  const auto bytes = CheckedMul(d, static_cast<int64_t>(sizeof(float)) * threads);
  return static_cast<uint64_t>(bytes.value_or(std::numeric_limits<int64_t>::max()));
}

void RunNormQuant(const NormQuantArgs& args, void* workspace, ThreadPool& pool) {
  RunRows(args, args.x.cols, workspace, pool, NormRow);
}

void RunSiluMulQuant(const SiluMulQuantArgs& args, void* workspace, ThreadPool& pool) {
  RunRows(args, args.x.cols / 2, workspace, pool, SiluMulRow);
}

}  // namespace nibble::cpu
