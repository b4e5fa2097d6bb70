// The derived tolerance of a matmul against a float64 oracle, and a comparison that reports the
// worst element. kernels/NUMERICS.md derives the formula.
#ifndef NIBBLE_TESTS_SUPPORT_TOLERANCE_H_
#define NIBBLE_TESTS_SUPPORT_TOLERANCE_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "nibble/numeric.h"
#include "nibble/tensor.h"

namespace nibble::testing {

inline constexpr double kEpsAccF32 = 0x1p-24;     // unit roundoff of a binary32 accumulator
inline constexpr double kEpsWeightBF16 = 0x1p-8;  // weights rounded to BF16 on one of the two sides
// Deviations allowed of the accumulated rounding error. By Hoeffding's inequality an element
// exceeds it with probability below 2 exp(-c^2 / 2) = 3e-14; up to K = 64 never.
inline constexpr double kDeviations = 8.0;

// What separates the two computations that are compared.
struct MatmulErrorModel {
  double eps_acc = kEpsAccF32;
  double eps_w = 0.0;  // kEpsWeightBF16 where weights (or the oracle's weights) are rounded to BF16
};

// Unit roundoff of `output`.
constexpr double EpsOut(DType output) {
  return output == DType::kBF16 ? 0x1p-8 : output == DType::kF16 ? 0x1p-11 : 0x1p-24;
}

// Magnitude from which rounding to `output` may give infinity.
constexpr double OverflowThreshold(DType output) {
  return output == DType::kF16 ? 65520.0 : output == DType::kBF16 ? 0x1.FFp127 : 0x1.FFFFFFp127;
}

// The largest |y - y64| of an output with inputs of norms ||x||_2 and ||w||_2:
//
//   (c eps_acc sqrt(K) + eps_w) ||x|| ||w|| (1 + eps_out) + (eps_out + eps_acc) |y64| + tiny
//
// tiny = K 2^-126 + 2^-24 (F16) or 2^-126 (F32, BF16): subnormals, kept or flushed.
inline double MatmulTolerance(int64_t k, double x_norm, double w_norm, double y64, DType output,
                              const MatmulErrorModel& model = {}) {
  const double inputs = static_cast<double>(k);
  const double eps_out = EpsOut(output);
  const double accumulated =
      (kDeviations * model.eps_acc * std::sqrt(inputs) + model.eps_w) * x_norm * w_norm;
  const double tiny = inputs * 0x1p-126 + (output == DType::kF16 ? 0x1p-24 : 0x1p-126);
  return accumulated * (1.0 + eps_out) + (eps_out + model.eps_acc) * std::fabs(y64) + tiny;
}

// The result of a comparison: how many elements failed, and the worst one (largest error over
// bound; a wrong NaN or infinity is worst of all).
struct ComparisonReport {
  int64_t compared = 0;
  int64_t failures = 0;
  int64_t row = -1;
  int64_t col = -1;
  double expected = 0.0;
  double received = 0.0;
  double bound = 0.0;
  double ratio = -1.0;

  bool ok() const { return failures == 0; }
  std::string ToString() const {
    return fmt::format(
        "{} of {} elements out of tolerance; worst [{}, {}]: expected {:.9g}, received {:.9g}, "
        "difference {:.3g}, bound {:.3g} ({:.3g} of it)",
        failures, compared, row, col, expected, received, std::fabs(expected - received), bound,
        ratio);
  }
  void Add(int64_t at_row, int64_t at_col, double want, double got, double limit, double used) {
    ++compared;
    if (!(used <= 1.0)) ++failures;
    if (!(used <= ratio)) {
      row = at_row;
      col = at_col;
      expected = want;
      received = got;
      bound = limit;
      ratio = used;
    }
  }
};

// Error of one element as a share of its bound; infinity where the values cannot be compared. NaN
// must meet NaN and infinity the same infinity; a finite oracle value past the range of `output`
// may have become infinity.
inline double ErrorOverBound(double expected, double received, double bound, DType output) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(expected) || std::isnan(received)) {
    return std::isnan(expected) && std::isnan(received) ? 0.0 : kWrong;
  }
  if (std::isinf(expected)) return received == expected ? 0.0 : kWrong;
  if (std::isinf(received)) {
    const bool may_overflow = std::fabs(expected) + bound >= OverflowThreshold(output) &&
                              std::signbit(expected) == std::signbit(received);
    return may_overflow ? 0.0 : kWrong;
  }
  const double error = std::fabs(expected - received);
  return std::isfinite(bound) && bound > 0.0 ? error / bound : kWrong;
}

// ||row||_2 of every row of `matrix`, in float64.
inline std::vector<double> RowNorms(const ConstMatrixView& matrix) {
  std::vector<double> norms;
  norms.reserve(static_cast<size_t>(matrix.rows));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    double sum = 0.0;
    for (int64_t col = 0; col < matrix.cols; ++col) {
      const double value = LoadAsFloat(matrix.data, matrix.dtype, row * matrix.row_stride + col);
      sum += value * value;
    }
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

// Compares y [M, N] with the oracle `expected` [M, N]; x_norms [M] and w_norms [N] are the row
// norms of the activations and of the decoded weight, `k` is the length of those rows.
inline ComparisonReport CompareMatmul(const ConstMatrixView& y, std::span<const double> expected,
                                      std::span<const double> x_norms,
                                      std::span<const double> w_norms, int64_t k,
                                      const MatmulErrorModel& model = {}) {
  ComparisonReport report;
  const auto rows = static_cast<size_t>(y.rows);
  const auto cols = static_cast<size_t>(y.cols);
  if (expected.size() != rows * cols || x_norms.size() != rows || w_norms.size() != cols) {
    report.failures = 1;  // the oracle has another shape: nothing can be compared
    return report;
  }
  for (size_t m = 0; m < rows; ++m) {
    for (size_t n = 0; n < cols; ++n) {
      const double want = expected[m * cols + n];
      const auto row = static_cast<int64_t>(m);
      const auto col = static_cast<int64_t>(n);
      const double got = LoadAsFloat(y.data, y.dtype, row * y.row_stride + col);
      const double bound = MatmulTolerance(k, x_norms[m], w_norms[n], want, y.dtype, model);
      report.Add(row, col, want, got, bound, ErrorOverBound(want, got, bound, y.dtype));
    }
  }
  return report;
}

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_SUPPORT_TOLERANCE_H_
