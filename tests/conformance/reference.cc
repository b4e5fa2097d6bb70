#include "tests/conformance/reference.h"

#include <algorithm>
#include <cmath>

namespace nibble::conformance {

QuantizedRows QuantizeReference(const HostMatrix& v, const OutputQuant& quant, DType dtype) {
  QuantizedRows result;
  const int64_t per_row = ScalesPerRow(quant.mode, v.cols);
  result.codes = HostMatrix(dtype, v.rows, v.cols);
  result.scales = HostMatrix(DType::kF32, v.rows, per_row);
  const float limit = dtype == DType::kI8 ? 127.0f : 448.0f;
  const int64_t shared = quant.mode == QuantMode::kPerGroup ? kQuantGroup : v.cols;
  for (int64_t row = 0; row < v.rows; ++row) {
    for (int64_t group = 0; group < per_row; ++group) {
      const int64_t begin = group * shared;
      const int64_t end = std::min(v.cols, begin + shared);
      float scale = quant.static_scale;
      if (quant.mode != QuantMode::kStatic) {
        float amax = 0.0f;
        for (int64_t col = begin; col < end; ++col) {
          const float magnitude = std::fabs(v.At(row, col));
          if (std::isnan(magnitude) || magnitude > amax) amax = magnitude;
          if (std::isnan(amax)) break;
        }
        scale = amax / limit;
        if (scale < kMinQuantScale) scale = kMinQuantScale;
      }
      result.scales.Set(row, group, scale);
      for (int64_t col = begin; col < end; ++col) {
        result.codes.Set(row, col, v.At(row, col) / scale);
      }
    }
  }
  return result;
}

std::vector<double> DecodeActivations(const QuantizedRows& rows, QuantMode mode) {
  const HostMatrix& codes = rows.codes;
  std::vector<double> x;
  x.reserve(static_cast<size_t>(codes.rows * codes.cols));
  for (int64_t row = 0; row < codes.rows; ++row) {
    for (int64_t col = 0; col < codes.cols; ++col) {
      const int64_t group = mode == QuantMode::kPerGroup ? col / kQuantGroup : 0;
      const int64_t scale_row = rows.scales.rows == 1 ? 0 : row;
      x.push_back(double{codes.At(row, col)} * double{rows.scales.At(scale_row, group)});
    }
  }
  return x;
}

std::vector<double> ToDoubles(const HostMatrix& matrix) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i) values.push_back(matrix.At(0, i));
  return values;
}

std::vector<double> MatmulOracle(const std::vector<double>& x, int64_t m, const HostMatrix& w,
                                 const HostMatrix& bias) {
  const std::vector<double> weights = ToDoubles(w);
  const auto k = static_cast<size_t>(w.cols);
  std::vector<double> y;
  y.reserve(static_cast<size_t>(m * w.rows));
  for (int64_t row = 0; row < m; ++row) {
    const double* activations = x.data() + static_cast<size_t>(row) * k;
    for (int64_t n = 0; n < w.rows; ++n) {
      const double* inputs = weights.data() + static_cast<size_t>(n) * k;
      double sum = bias.cols > 0 ? double{bias.At(0, n)} : 0.0;
      for (size_t i = 0; i < k; ++i) sum += activations[i] * inputs[i];
      y.push_back(sum);
    }
  }
  return y;
}

std::vector<double> RowNorms(const std::vector<double>& matrix, int64_t rows) {
  std::vector<double> norms;
  const size_t cols = rows == 0 ? 0 : matrix.size() / static_cast<size_t>(rows);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    double sum = 0.0;
    for (size_t col = 0; col < cols; ++col) {
      sum += matrix[row * cols + col] * matrix[row * cols + col];
    }
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

HostMatrix AddReference(const HostMatrix& x, const HostMatrix& residual) {
  HostMatrix h = x;
  if (residual.rows == 0) return h;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) {
      h.Set(row, col, x.At(row, col) + residual.At(row, col));
    }
  }
  return h;
}

float RsqrtReference(const HostMatrix& h, int64_t row, float epsilon) {
  float lanes[16] = {};
  for (int64_t col = 0; col < h.cols; ++col) {
    const float square = h.At(row, col) * h.At(row, col);
    lanes[col % 16] += square;
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  const float mean = lanes[0] / static_cast<float>(h.cols);
  return 1.0f / std::sqrt(mean + epsilon);
}

HostMatrix NormRowReference(const HostMatrix& h, int64_t row, float rsqrt,
                            const HostMatrix& gamma) {
  HostMatrix v(h.dtype, 1, h.cols);
  for (int64_t col = 0; col < h.cols; ++col) {
    const float t = RoundTo(h.dtype, h.At(row, col) * rsqrt);
    v.Set(0, col, t * gamma.At(0, col));
  }
  return v;
}

float SiluReference(float gate) { return gate / (1.0f + std::exp(-gate)); }

float MoveUlps(float value, int ulps) {
  const float away = std::copysign(std::numeric_limits<float>::infinity(), value);
  for (; ulps > 0; --ulps) value = std::nextafter(value, away);
  for (; ulps < 0; ++ulps) value = std::nextafter(value, 0.0f);
  return value;
}

}  // namespace nibble::conformance
