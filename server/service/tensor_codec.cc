#include "server/service/tensor_codec.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nibble/status.h"

namespace nibble::server {
namespace {

// Room for everything of a response that is not tensor bytes.
constexpr uint64_t kEnvelopeBytes = 4096;

absl::StatusOr<DType> ParseElementType(v1::DType dtype, std::string_view field) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return DType::kF32;
    case v1::DTYPE_F16:
      return DType::kF16;
    case v1::DTYPE_BF16:
      return DType::kBF16;
    case v1::DTYPE_F8_E4M3:
      return DType::kF8E4M3;
    case v1::DTYPE_I8:
      return DType::kI8;
    default:
      break;
  }
  return absl::InvalidArgumentError(
      fmt::format("{}.dtype: expected F32, F16, BF16, F8_E4M3 or I8; received {}", field,
                  static_cast<int>(dtype)));
}

std::string ShapeText(const v1::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape(), ", "));
}

}  // namespace

absl::StatusOr<WireMatrix> ParseMatrix(const v1::Tensor& tensor, uint64_t data_bytes,
                                       std::string_view field) {
  WireMatrix matrix;
  NIBBLE_ASSIGN_OR_RETURN(matrix.dtype, ParseElementType(tensor.dtype(), field));
  const int rank = tensor.shape_size();
  if (rank < 1 || rank > kMaxRank) {
    return absl::InvalidArgumentError(
        fmt::format("{}.shape: expected 1 to {} dimensions; received {}", field, kMaxRank, rank));
  }
  matrix.rows = 1;
  matrix.cols = tensor.shape(rank - 1);
  for (int i = 0; i < rank; ++i) {
    const int64_t dimension = tensor.shape(i);
    if (dimension < 0) {
      return absl::InvalidArgumentError(fmt::format(
          "{}.shape: expected dimensions of at least 0; received {}", field, ShapeText(tensor)));
    }
    if (i == rank - 1) break;
    const auto rows = CheckedMul(matrix.rows, dimension);
    if (!rows) {
      return absl::InvalidArgumentError(fmt::format(
          "{}.shape: expected fewer than 2^63 rows; received {}", field, ShapeText(tensor)));
    }
    matrix.rows = *rows;
  }
  const auto elements = CheckedMul(matrix.rows, matrix.cols);
  const auto bytes =
      elements ? CheckedMul(*elements, static_cast<int64_t>(DTypeBytes(matrix.dtype))) : elements;
  if (!bytes) {
    return absl::InvalidArgumentError(fmt::format(
        "{}.shape: expected fewer than 2^63 bytes; received {}", field, ShapeText(tensor)));
  }
  if (static_cast<uint64_t>(*bytes) != data_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}.data: expected {} bytes for {} {}; received {}", field, *bytes,
                    DTypeName(matrix.dtype), ShapeText(tensor), data_bytes));
  }
  return matrix;
}

absl::StatusOr<DType> ParseDType(v1::DType dtype, DType otherwise,
                                 std::initializer_list<DType> allowed, std::string_view field) {
  if (dtype == v1::DTYPE_UNSPECIFIED) return otherwise;
  const auto parsed = ParseElementType(dtype, field);
  if (parsed.ok() && std::find(allowed.begin(), allowed.end(), *parsed) != allowed.end()) {
    return *parsed;
  }
  std::string names;
  for (DType candidate : allowed) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", DTypeName(candidate));
  }
  const std::string received =
      parsed.ok() ? std::string(DTypeName(*parsed)) : fmt::format("{}", static_cast<int>(dtype));
  return absl::InvalidArgumentError(
      fmt::format("{}: expected one of {}; received {}", field, names, received));
}

v1::DType ToWire(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::DTYPE_F32;
    case DType::kF16:
      return v1::DTYPE_F16;
    case DType::kBF16:
      return v1::DTYPE_BF16;
    case DType::kF8E4M3:
      return v1::DTYPE_F8_E4M3;
    case DType::kI8:
      return v1::DTYPE_I8;
  }
  return v1::DTYPE_UNSPECIFIED;
}

absl::StatusOr<QuantMode> ParseQuantMode(v1::QuantMode mode, std::string_view field) {
  switch (mode) {
    case v1::QUANT_MODE_NONE:
      return QuantMode::kNone;
    case v1::QUANT_MODE_PER_TOKEN:
      return QuantMode::kPerToken;
    case v1::QUANT_MODE_PER_GROUP:
      return QuantMode::kPerGroup;
    case v1::QUANT_MODE_STATIC:
      return QuantMode::kStatic;
    default:
      break;
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: expected NONE, PER_TOKEN, PER_GROUP or STATIC; received {}", field,
                  static_cast<int>(mode)));
}

absl::StatusOr<uint64_t> ShapeResult(const v1::Tensor& like, int64_t rows, int64_t cols,
                                     DType dtype, uint64_t limit_bytes, std::string_view field,
                                     v1::Tensor* tensor) {
  const auto elements = CheckedMul(rows, cols);
  const auto bytes =
      elements ? CheckedMul(*elements, static_cast<int64_t>(DTypeBytes(dtype))) : elements;
  if (!bytes || static_cast<uint64_t>(*bytes) + kEnvelopeBytes > limit_bytes) {
    return absl::ResourceExhaustedError(fmt::format(
        "{}: [{}, {}] {} does not fit the message limit of {} bytes (--max-message-bytes); send "
        "fewer rows",
        field, rows, cols, DTypeName(dtype), limit_bytes));
  }
  tensor->set_dtype(ToWire(dtype));
  for (int i = 0; i + 1 < like.shape_size(); ++i) tensor->add_shape(like.shape(i));
  tensor->add_shape(cols);
  return static_cast<uint64_t>(*bytes);
}

absl::Status CheckRequestId(std::string_view request_id) {
  if (request_id.size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "request_id: expected at most {} bytes; received {}", kMaxRequestIdBytes, request_id.size()));
}

}  // namespace nibble::server
