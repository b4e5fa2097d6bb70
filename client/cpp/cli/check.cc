#include "client/cpp/cli/check.h"

#include <cmath>
#include <cstring>

#include "client/cpp/cli/tolerance.h"
#include "fmt/format.h"
#include "nibble/client_tensor.h"

namespace nibble::cli {
namespace {

// JSON has no NaN and no infinity.
Json Number(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{}", value);
}

}  // namespace

absl::StatusOr<MatmulCheck> MatmulCheck::Create(const Matrix& x, const Matrix& x_used,
                                                const v1::Tensor& y, const Matrix& expected) {
  absl::StatusOr<Matrix> received = MatrixOf(y);
  if (!received.ok()) return received.status();
  if (expected.rows < 1 || expected.cols != received->cols) {
    return absl::InvalidArgumentError(
        fmt::format("--expect: expected rows of {} values, received a matrix [{}, {}]",
                    received->cols, expected.rows, expected.cols));
  }
  if (received->rows != x.rows) {
    return absl::InvalidArgumentError(
        fmt::format("y: expected {} rows, received {}", x.rows, received->rows));
  }
  MatmulCheck check;
  check.x_ = x;
  check.x_used_ = x_used;
  check.moved_ = x.values != x_used.values;
  check.y_ = *std::move(received);
  check.y_dtype_ = y.dtype();
  check.expected_ = expected;
  for (int64_t row = 0; row < x.rows; ++row) {
    double sum = 0.0;
    for (int64_t i = 0; i < x.cols; ++i) sum += x_used.at(row, i) * x_used.at(row, i);
    check.x_norms_.push_back(std::sqrt(sum));
  }
  return check;
}

absl::Status MatmulCheck::AddWeightRow(int64_t n, std::span<const float> w) {
  if (n < 0 || n >= y_.cols || static_cast<int64_t>(w.size()) != x_.cols) {
    return absl::InvalidArgumentError(
        fmt::format("weight: expected rows 0..{} of {} values, received row {} of {} values",
                    y_.cols - 1, x_.cols, n, w.size()));
  }
  double square = 0.0;
  for (const float value : w) square += static_cast<double>(value) * value;
  const double w_norm = std::sqrt(square);
  for (int64_t m = 0; m < y_.rows; ++m) {
    double expected = expected_.at(m % expected_.rows, n);
    if (moved_) {
      for (int64_t i = 0; i < x_.cols; ++i) {
        expected += (x_used_.at(m, i) - x_.at(m, i)) * w[static_cast<size_t>(i)];
      }
    }
    Compare(m, n, expected,
            MatmulTolerance(x_.cols, x_norms_[static_cast<size_t>(m)], w_norm, expected, y_dtype_,
                            kBF16WeightRoundoff));
  }
  return absl::OkStatus();
}

void MatmulCheck::Compare(int64_t row, int64_t col, double expected, double tolerance) {
  const double received = y_.at(row, col);
  const double ratio = ErrorOverTolerance(expected, received, tolerance, y_dtype_);
  ++compared_;
  if (!(ratio <= 1.0)) ++failures_;
  if (ratio <= worst_ratio_) return;
  worst_row_ = row;
  worst_col_ = col;
  worst_expected_ = expected;
  worst_received_ = received;
  worst_tolerance_ = tolerance;
  worst_ratio_ = ratio;
}

std::string MatmulCheck::Text() const {
  if (compared_ == 0) return "nothing compared";
  return fmt::format(
      "{} of {} elements out of tolerance; worst: row {}, column {}, expected {:.9g}, received "
      "{:.9g}, error {:.3g}, tolerance {:.3g}",
      failures_, compared_, worst_row_, worst_col_, worst_expected_, worst_received_,
      std::fabs(worst_expected_ - worst_received_), worst_tolerance_);
}

Json MatmulCheck::ToJson() const {
  return {{"ok", ok()},
          {"compared", compared_},
          {"failures", failures_},
          {"worst",
           {{"row", worst_row_},
            {"column", worst_col_},
            {"expected", Number(worst_expected_)},
            {"received", Number(worst_received_)},
            {"error", Number(std::fabs(worst_expected_ - worst_received_))},
            {"tolerance", Number(worst_tolerance_)}}}};
}

BitCheck::BitCheck(v1::Tensor stored, bool allow_signed_zero)
    : stored_(std::move(stored)), allow_signed_zero_(allow_signed_zero) {}

absl::Status BitCheck::AddRows(int64_t row_begin, const v1::Tensor& rows) {
  if (rows.dtype() != stored_.dtype()) {
    return absl::InvalidArgumentError(
        fmt::format("--expect: the server sent {}, the stored tensor is {}",
                    client::DTypeName(rows.dtype()), client::DTypeName(stored_.dtype())));
  }
  const Extent received = ExtentOf(rows);
  const Extent stored = ExtentOf(stored_);
  if (received.cols != stored.cols || row_begin < 0 || row_begin + received.rows > stored.rows) {
    return absl::InvalidArgumentError(fmt::format(
        "--expect: the stored tensor is [{}, {}], the server sent rows {}..{} of {} values",
        stored.rows, stored.cols, row_begin, row_begin + received.rows, received.cols));
  }
  const auto size = static_cast<size_t>(client::DTypeBytes(rows.dtype()));
  const auto count = static_cast<size_t>(received.rows * received.cols);
  if (rows.data().size() != count * size) {
    return absl::InvalidArgumentError(
        fmt::format("rows: expected {} bytes, received {}", count * size, rows.data().size()));
  }
  const uint32_t sign = 1u << (8 * size - 1);
  const char* want = stored_.data().data() + static_cast<size_t>(row_begin * stored.cols) * size;
  for (size_t i = 0; i < count; ++i) {
    uint32_t expected = 0;
    uint32_t got = 0;
    std::memcpy(&expected, want + i * size, size);
    std::memcpy(&got, rows.data().data() + i * size, size);
    ++compared_;
    if (expected == got) continue;
    if (allow_signed_zero_ && (expected | sign) == sign && (got | sign) == sign) continue;
    if (mismatches_++ > 0) continue;
    first_row_ = row_begin + static_cast<int64_t>(i) / received.cols;
    first_col_ = static_cast<int64_t>(i) % received.cols;
    first_expected_ = expected;
    first_received_ = got;
  }
  return absl::OkStatus();
}

std::string BitCheck::Text() const {
  if (compared_ == 0) return "nothing compared";
  if (mismatches_ == 0) return fmt::format("all {} elements equal bit for bit", compared_);
  const v1::DType dtype = stored_.dtype();
  const auto digits = static_cast<int>(2 * client::DTypeBytes(dtype));
  return fmt::format(
      "{} of {} elements differ; first: row {}, column {}, expected {:.9g} (0x{:0{}x}), received "
      "{:.9g} (0x{:0{}x})",
      mismatches_, compared_, first_row_, first_col_,
      client::DecodeElement(&first_expected_, dtype), first_expected_, digits,
      client::DecodeElement(&first_received_, dtype), first_received_, digits);
}

Json BitCheck::ToJson() const {
  Json json = {{"ok", ok()}, {"compared", compared_}, {"mismatches", mismatches_}};
  if (mismatches_ > 0) {
    json["first"] = {
        {"row", first_row_},
        {"column", first_col_},
        {"expected", Number(client::DecodeElement(&first_expected_, stored_.dtype()))},
        {"received", Number(client::DecodeElement(&first_received_, stored_.dtype()))}};
  }
  return json;
}

}  // namespace nibble::cli
