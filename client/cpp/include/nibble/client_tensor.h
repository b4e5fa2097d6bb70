// Tensors of the wire from and to plain arrays.
#ifndef NIBBLE_CLIENT_TENSOR_H_
#define NIBBLE_CLIENT_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::client {

// Bytes of one element; 0 for an unknown type.
int64_t DTypeBytes(v1::DType dtype);
// "F32", "F16", "BF16", "F8_E4M3", "I8"; "?" for an unknown type.
std::string_view DTypeName(v1::DType dtype);

// Product of a shape; kInvalidArgument for a negative dimension or a product over 2^63 - 1.
absl::StatusOr<int64_t> ElementCount(std::span<const int64_t> shape);

// `bytes` as they are; kInvalidArgument unless there are product(shape) * DTypeBytes(dtype) of
// them.
absl::StatusOr<v1::Tensor> TensorFromBytes(std::span<const std::byte> bytes,
                                           std::span<const int64_t> shape, v1::DType dtype);
// `values` rounded once to `dtype`, to nearest even. F8_E4M3 saturates to +-448 and I8 to [-128,
// 127]; F16 overflows to infinity; NaN stays NaN (I8: 0).
absl::StatusOr<v1::Tensor> TensorFromFloats(std::span<const float> values,
                                            std::span<const int64_t> shape, v1::DType dtype);
inline absl::StatusOr<v1::Tensor> TensorFromFloats(std::span<const float> values,
                                                   std::initializer_list<int64_t> shape,
                                                   v1::DType dtype) {
  return TensorFromFloats(values, std::span<const int64_t>(shape.begin(), shape.size()), dtype);
}
// Every element widened; kInvalidArgument where data does not match dtype and shape.
absl::StatusOr<std::vector<float>> FloatsFromTensor(const v1::Tensor& tensor);

// One element at `bytes`, which need not be aligned, and back.
float DecodeElement(const void* bytes, v1::DType dtype);
void EncodeElement(float value, v1::DType dtype, void* bytes);
// `value` rounded to `dtype` and widened again.
float RoundTo(v1::DType dtype, float value);

}  // namespace nibble::client

#endif  // NIBBLE_CLIENT_TENSOR_H_
