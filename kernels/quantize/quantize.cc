#include "nibble/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "kernels/core/validate_view.h"
#include "kernels/quantize/formats.h"
#include "nibble/numeric.h"

namespace nibble {
namespace {

constexpr int kMaxThreads = 1024;
// A thread costs some tens of microseconds to start, as much as these elements to quantize.
constexpr int64_t kElementsPerThread = int64_t{1} << 17;

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

Status CheckOptions(const QuantizeOptions& options) {
  if (options.threads >= 0 && options.threads <= kMaxThreads) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("threads: expected 0 to {}; received {}", kMaxThreads, options.threads));
}

// Threads that have enough to do.
int ThreadsFor(const WeightSpec& spec, const QuantizeOptions& options) {
  const int wanted =
      options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  const int64_t useful = spec.n * spec.k / kElementsPerThread + 1;
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::min<int64_t>(useful, kMaxThreads)));
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

// kInvalidArgument names the first value that is not finite.
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

StatusOr<CanonicalWeight> Encode(quantize::Job& job) {
  switch (job.spec.format) {
    case Format::kDense:
      return CopyDense(job.matrix, job.spec);
    case Format::kNF4:
    case Format::kFP4:
      return quantize::QuantizeTable(job);
    case Format::kInt4:
      return quantize::QuantizeInt4(job);
    case Format::kFP8:
      return quantize::QuantizeFP8(job);
  }
  return absl::InternalError("format: a checked spec has an unknown format");
}

}  // namespace

StatusOr<CanonicalWeight> Quantize(const ConstMatrixView& matrix, const WeightSpec& target,
                                   const QuantizeOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckMatrix(matrix));
  NIBBLE_RETURN_IF_ERROR(CheckTarget(target));
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options));
  WeightSpec spec = target;
  spec.n = matrix.rows;
  spec.k = matrix.cols;
  spec.dtype = matrix.dtype;
  spec.has_bias = false;
  spec.bias_dtype = WeightSpec{}.bias_dtype;
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  try {
    NIBBLE_ASSIGN_OR_RETURN(const auto pool, cpu::ThreadPool::Create(ThreadsFor(spec, options)));
    quantize::Job job{matrix, spec, options, *pool};
    StatusOr<CanonicalWeight> weight = Encode(job);
    if (spec.format == Format::kDense || !job.finite) NIBBLE_RETURN_IF_ERROR(CheckFinite(matrix));
    return weight;
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return absl::ResourceExhaustedError(
      fmt::format("matrix: expected host memory for a weight of {} bytes; it does not suffice",
                  geometry.total_bytes));
}

}  // namespace nibble
