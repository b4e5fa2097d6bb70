// Tensors of the wire to checked shapes, and back. Nothing is allocated from a number of a message
// before it has been checked against the bytes that came with it or against the message limit.
#ifndef NIBBLE_SERVER_SERVICE_TENSOR_CODEC_H_
#define NIBBLE_SERVER_SERVICE_TENSOR_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "absl/status/statusor.h"
#include "nibble/ops.h"
#include "nibble/tensor.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::server {

// Most dimensions a tensor may have.
inline constexpr int kMaxRank = 8;
// Longest request_id, in bytes.
inline constexpr size_t kMaxRequestIdBytes = 128;

// A tensor of a request as a matrix: leading dimensions flattened to rows.
struct WireMatrix {
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;

  int64_t row_bytes() const { return cols * static_cast<int64_t>(DTypeBytes(dtype)); }
};

// Checks dtype, rank and dimensions, and that the tensor's data, which may lie elsewhere, has the
// exact length: `data_bytes`. `field` names the tensor in messages. A tensor of rank 1 is one row.
absl::StatusOr<WireMatrix> ParseMatrix(const v1::Tensor& tensor, uint64_t data_bytes,
                                       std::string_view field);

// DTYPE_UNSPECIFIED gives `otherwise`. kInvalidArgument unless the type is one of `allowed`.
absl::StatusOr<DType> ParseDType(v1::DType dtype, DType otherwise,
                                 std::initializer_list<DType> allowed, std::string_view field);
v1::DType ToWire(DType dtype);

absl::StatusOr<QuantMode> ParseQuantMode(v1::QuantMode mode, std::string_view field);

// Makes `tensor` one of [leading dimensions of `like`..., cols] and `dtype`, without data, and
// returns the bytes of its data. kResourceExhausted when it would not fit a message of
// `limit_bytes`.
absl::StatusOr<uint64_t> ShapeResult(const v1::Tensor& like, int64_t rows, int64_t cols,
                                     DType dtype, uint64_t limit_bytes, std::string_view field,
                                     v1::Tensor* tensor);

absl::Status CheckRequestId(std::string_view request_id);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_TENSOR_CODEC_H_
