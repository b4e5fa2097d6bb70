#include "nibble/quantize.h"

#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "fmt/format.h"
#include "kernels/core/quantize_formats.h"
#include "kernels/core/validate_view.h"
#include "nibble/numeric.h"

namespace nibble {
namespace {

Status CheckTarget(const WeightSpec& target) {
  if (target.format == Format::kInt4 && target.has_group_index) {
    return absl::InvalidArgumentError(
        "has_group_index: expected false, as act-order needs calibration data; received true");
  }
  if (target.format == Format::kFP8 && target.has_input_scale) {
    return absl::InvalidArgumentError(
        "has_input_scale: expected false, as it needs calibration data; received true");
  }
  return absl::OkStatus();
}

Status CheckMatrix(const ConstMatrixView& matrix) {
  const core::NamedView named = core::Input("matrix", matrix);
  if (matrix.rows < 1 || matrix.cols < 1) {
    return absl::InvalidArgumentError(
        fmt::format("matrix: expected at least 1 row and 1 column; received [{}, {}]", matrix.rows,
                    matrix.cols));
  }
  NIBBLE_RETURN_IF_ERROR(core::CheckFloatDType(named));
  return core::CheckView(named, matrix.rows, matrix.cols);
}

Status CheckFinite(const ConstMatrixView& matrix) {
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t col = 0; col < matrix.cols; ++col) {
      const float value = LoadAsFloat(matrix.data, matrix.dtype, row * matrix.row_stride + col);
      if (!std::isfinite(value)) {
        return absl::InvalidArgumentError(
            fmt::format("matrix[{}, {}]: expected a finite value; received {}", row, col, value));
      }
    }
  }
  return absl::OkStatus();
}

CanonicalWeight CopyDense(const ConstMatrixView& matrix, const WeightSpec& spec) {
  const size_t row_bytes = static_cast<size_t>(matrix.cols) * DTypeBytes(matrix.dtype);
  std::vector<std::byte> codes(static_cast<size_t>(matrix.rows) * row_bytes);
  const auto* from = static_cast<const std::byte*>(matrix.data);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    std::memcpy(codes.data() + static_cast<size_t>(row) * row_bytes,
                from + row * matrix.row_stride_bytes(), row_bytes);
  }
  CanonicalWeight weight;
  weight.spec = spec;
  weight.codes = HostBytes(std::move(codes));
  return weight;
}

StatusOr<CanonicalWeight> Encode(const ConstMatrixView& matrix, const WeightSpec& spec) {
  switch (spec.format) {
    case Format::kDense:
      return CopyDense(matrix, spec);
    case Format::kNF4:
    case Format::kFP4:
      return core::QuantizeTable(matrix, spec);
    case Format::kInt4:
      return core::QuantizeInt4(matrix, spec);
    case Format::kFP8:
      return core::QuantizeFP8(matrix, spec);
  }
  return absl::InternalError("format: a checked spec has an unknown format");
}

}  // namespace

StatusOr<CanonicalWeight> Quantize(const ConstMatrixView& matrix, const WeightSpec& target) {
  NIBBLE_RETURN_IF_ERROR(CheckMatrix(matrix));
  NIBBLE_RETURN_IF_ERROR(CheckTarget(target));
  WeightSpec spec = target;
  spec.n = matrix.rows;
  spec.k = matrix.cols;
  spec.dtype = matrix.dtype;
  spec.has_bias = false;
  spec.bias_dtype = WeightSpec{}.bias_dtype;
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  NIBBLE_RETURN_IF_ERROR(CheckFinite(matrix));
  try {
    return Encode(matrix, spec);
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return absl::ResourceExhaustedError(
      fmt::format("matrix: expected host memory for a weight of {} bytes; it does not suffice",
                  geometry.total_bytes));
}

}  // namespace nibble
