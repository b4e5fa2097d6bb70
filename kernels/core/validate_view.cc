#include "kernels/core/validate_view.h"

#include <limits>
#include <optional>

#include "fmt/format.h"

namespace nibble::core {
namespace {

// Bytes from the first to one past the last element, or nothing past 63 bits.
std::optional<int64_t> ExtentBytes(const ConstMatrixView& view) {
  if (view.rows == 0 || view.cols == 0) return 0;
  const auto before_last = CheckedMul(view.rows - 1, view.row_stride);
  if (!before_last || *before_last > std::numeric_limits<int64_t>::max() - view.cols) {
    return std::nullopt;
  }
  return CheckedMul(*before_last + view.cols, static_cast<int64_t>(DTypeBytes(view.dtype)));
}

}  // namespace

NamedView Input(std::string_view name, const ConstMatrixView& view) { return {name, view, false}; }

NamedView Result(std::string_view name, const MatrixView& view) {
  return {name, {view.data, view.dtype, view.rows, view.cols, view.row_stride}, true};
}

Status CheckView(const NamedView& named, int64_t rows, int64_t cols) {
  const ConstMatrixView& view = named.view;
  if (view.rows != rows || view.cols != cols || rows < 0 || cols < 0) {
    return absl::InvalidArgumentError(fmt::format("{}: expected shape [{}, {}]; received [{}, {}]",
                                                  named.name, rows, cols, view.rows, view.cols));
  }
  if (view.empty() && rows > 0 && cols > 0) {
    return absl::InvalidArgumentError(fmt::format(
        "{}.data: expected memory of shape [{}, {}]; received null", named.name, rows, cols));
  }
  const bool repeats = view.row_stride == 0 && !named.writable;
  if (view.row_stride < 0 || (rows > 1 && view.row_stride < cols && !repeats)) {
    return absl::InvalidArgumentError(
        fmt::format("{}.row_stride: expected at least {}{}; received {}", named.name, cols,
                    named.writable ? "" : " or 0", view.row_stride));
  }
  if (!ExtentBytes(view)) {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected an extent below 2^63 bytes; received [{}, {}] with row_stride {}",
                    named.name, rows, cols, view.row_stride));
  }
  return absl::OkStatus();
}

Status CheckFloatDType(const NamedView& named) {
  if (IsFloat16Or32(named.view.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{}.dtype: expected F32, F16 or BF16; received {}",
                                                named.name, DTypeName(named.view.dtype)));
}

Status CheckDType(const NamedView& named, DType expected) {
  if (named.view.dtype == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{}.dtype: expected {}; received {}", named.name,
                                                DTypeName(expected), DTypeName(named.view.dtype)));
}

Status CheckAbsent(const NamedView& named, std::string_view when) {
  if (named.view.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{}: expected none {}; received [{}, {}] {}",
                                                named.name, when, named.view.rows, named.view.cols,
                                                DTypeName(named.view.dtype)));
}

Status CheckDisjoint(const NamedView& result, const NamedView& other) {
  const ConstMatrixView& a = result.view;
  const ConstMatrixView& b = other.view;
  if (a.empty() || b.empty()) return absl::OkStatus();
  const auto a_begin = reinterpret_cast<uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<uintptr_t>(b.data);
  const auto a_bytes = static_cast<uintptr_t>(ExtentBytes(a).value_or(0));
  const auto b_bytes = static_cast<uintptr_t>(ExtentBytes(b).value_or(0));
  if (a_begin >= b_begin ? a_begin - b_begin >= b_bytes : b_begin - a_begin >= a_bytes) {
    return absl::OkStatus();
  }
  const auto stride = static_cast<uintptr_t>(a.row_stride_bytes());
  if (stride != 0 && a.row_stride_bytes() == b.row_stride_bytes()) {
    // Two column ranges of rows `stride` bytes apart: b's columns start `offset` bytes after a's.
    const uintptr_t offset = a_begin >= b_begin ? (stride - (a_begin - b_begin) % stride) % stride
                                                : (b_begin - a_begin) % stride;
    const uintptr_t a_width = static_cast<uintptr_t>(a.cols) * DTypeBytes(a.dtype);
    const uintptr_t b_width = static_cast<uintptr_t>(b.cols) * DTypeBytes(b.dtype);
    if (offset >= a_width && offset + b_width <= stride) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "{}: expected memory apart from {}; received overlapping memory", result.name, other.name));
}

}  // namespace nibble::core
