#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "nibble/client_tensor.h"

namespace nibble::client {
namespace {

// A float of fewer bits than binary32: sign, exponent, mantissa, with subnormals.
struct SmallFloat {
  int mantissa_bits;
  int bias;
  uint32_t sign_bit;
  double largest;          // largest finite value
  uint32_t largest_bits;   // its code
  uint32_t overflow_bits;  // code of what is above: infinity, or `largest_bits` where it saturates
  uint32_t nan_bits;
};

constexpr SmallFloat kF16Format{10, 15, 0x8000u, 65504.0, 0x7BFFu, 0x7C00u, 0x7E00u};
constexpr SmallFloat kBF16Format{7, 127, 0x8000u, 0x1.FEp127, 0x7F7Fu, 0x7F80u, 0x7FC0u};
constexpr SmallFloat kF8E4M3Format{3, 7, 0x80u, 448.0, 0x7Eu, 0x7Eu, 0x7Fu};

uint32_t Encode(float value, const SmallFloat& format) {
  const uint32_t sign = std::signbit(value) ? format.sign_bit : 0u;
  if (std::isnan(value)) return sign | format.nan_bits;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0.0) return sign;
  // In units of the last mantissa bit of the value's binade (or of the subnormals) the magnitude is
  // rounded to an integer; a carry into the next binade is a carry of the code.
  const int lowest = 1 - format.bias;
  const int exponent = std::isinf(magnitude) ? 1024 : std::max(std::ilogb(magnitude), lowest);
  if (exponent == 1024) return sign | format.overflow_bits;
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  if (std::ldexp(units, exponent - format.mantissa_bits) > format.largest) {
    return sign | format.overflow_bits;
  }
  const auto count = static_cast<uint32_t>(units);
  return sign | (count + (static_cast<uint32_t>(exponent - lowest) << format.mantissa_bits));
}

float Decode(uint32_t bits, const SmallFloat& format) {
  const float sign = (bits & format.sign_bit) != 0 ? -1.0f : 1.0f;
  const uint32_t code = bits & (format.sign_bit - 1);
  if (code > format.largest_bits) {
    const bool infinite = code == format.overflow_bits;
    return std::copysign(
        infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN(),
        sign);
  }
  const uint32_t one = 1u << format.mantissa_bits;
  const uint32_t exponent = code >> format.mantissa_bits;
  const uint32_t mantissa = code & (one - 1);
  const int scale = (exponent == 0 ? 1 : static_cast<int>(exponent)) - format.bias;
  const uint32_t units = exponent == 0 ? mantissa : mantissa + one;
  return sign * std::ldexp(static_cast<float>(units), scale - format.mantissa_bits);
}

absl::Status SizeError(int64_t received, int64_t elements, v1::DType dtype) {
  return absl::InvalidArgumentError("data: expected " + std::to_string(elements) + " elements of " +
                                    std::to_string(DTypeBytes(dtype)) + " bytes, received " +
                                    std::to_string(received) + " bytes");
}

// The number of elements of a tensor of known type.
absl::StatusOr<int64_t> CheckedCount(std::span<const int64_t> shape, v1::DType dtype) {
  const int64_t size = DTypeBytes(dtype);
  if (size == 0) {
    return absl::InvalidArgumentError("dtype: expected F32, F16, BF16, F8_E4M3 or I8, received " +
                                      std::to_string(static_cast<int>(dtype)));
  }
  absl::StatusOr<int64_t> count = ElementCount(shape);
  if (count.ok() && *count > std::numeric_limits<int64_t>::max() / size) {
    return absl::InvalidArgumentError("shape: more bytes than 2^63 - 1");
  }
  return count;
}

}  // namespace

int64_t DTypeBytes(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return 4;
    case v1::DTYPE_F16:
    case v1::DTYPE_BF16:
      return 2;
    case v1::DTYPE_F8_E4M3:
    case v1::DTYPE_I8:
      return 1;
    default:
      return 0;
  }
}

std::string_view DTypeName(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return "F32";
    case v1::DTYPE_F16:
      return "F16";
    case v1::DTYPE_BF16:
      return "BF16";
    case v1::DTYPE_F8_E4M3:
      return "F8_E4M3";
    case v1::DTYPE_I8:
      return "I8";
    default:
      return "?";
  }
}

absl::StatusOr<int64_t> ElementCount(std::span<const int64_t> shape) {
  int64_t count = 1;
  bool overflow = false;
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) {
      return absl::InvalidArgumentError("shape: expected dimensions of at least 0, received " +
                                        std::to_string(dim));
    }
    empty = empty || dim == 0;
    overflow = overflow || __builtin_mul_overflow(count, dim, &count);
  }
  if (empty) return 0;
  if (overflow) return absl::InvalidArgumentError("shape: more elements than 2^63 - 1");
  return count;
}

float DecodeElement(const void* bytes, v1::DType dtype) {
  uint32_t word = 0;
  std::memcpy(&word, bytes, static_cast<size_t>(DTypeBytes(dtype)));
  switch (dtype) {
    case v1::DTYPE_F32:
      return std::bit_cast<float>(word);
    case v1::DTYPE_BF16:
      return std::bit_cast<float>(word << 16);
    case v1::DTYPE_F16:
      return Decode(word, kF16Format);
    case v1::DTYPE_F8_E4M3:
      return Decode(word, kF8E4M3Format);
    case v1::DTYPE_I8:
      return static_cast<float>(static_cast<int8_t>(word));
    default:
      return 0.0f;
  }
}

void EncodeElement(float value, v1::DType dtype, void* bytes) {
  uint32_t word = 0;
  switch (dtype) {
    case v1::DTYPE_F32:
      word = std::bit_cast<uint32_t>(value);
      break;
    case v1::DTYPE_BF16:
      word = Encode(value, kBF16Format);
      break;
    case v1::DTYPE_F16:
      word = Encode(value, kF16Format);
      break;
    case v1::DTYPE_F8_E4M3:
      word = Encode(value, kF8E4M3Format);
      break;
    case v1::DTYPE_I8:
      if (!std::isnan(value)) {
        const float whole = std::nearbyint(std::fmin(std::fmax(value, -128.0f), 127.0f));
        word = static_cast<uint8_t>(static_cast<int8_t>(whole));
      }
      break;
    default:
      break;
  }
  std::memcpy(bytes, &word, static_cast<size_t>(DTypeBytes(dtype)));
}

float RoundTo(v1::DType dtype, float value) {
  uint32_t word = 0;
  EncodeElement(value, dtype, &word);
  return DecodeElement(&word, dtype);
}

absl::StatusOr<v1::Tensor> TensorFromBytes(std::span<const std::byte> bytes,
                                           std::span<const int64_t> shape, v1::DType dtype) {
  const absl::StatusOr<int64_t> count = CheckedCount(shape, dtype);
  if (!count.ok()) return count.status();
  const auto received = static_cast<int64_t>(bytes.size());
  if (received != *count * DTypeBytes(dtype)) return SizeError(received, *count, dtype);
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  tensor.set_data(bytes.data(), bytes.size());
  return tensor;
}

absl::StatusOr<v1::Tensor> TensorFromFloats(std::span<const float> values,
                                            std::span<const int64_t> shape, v1::DType dtype) {
  const absl::StatusOr<int64_t> count = CheckedCount(shape, dtype);
  if (!count.ok()) return count.status();
  if (static_cast<int64_t>(values.size()) != *count) {
    return absl::InvalidArgumentError("values: expected " + std::to_string(*count) + ", received " +
                                      std::to_string(values.size()));
  }
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  const auto size = static_cast<size_t>(DTypeBytes(dtype));
  std::string& data = *tensor.mutable_data();
  data.resize(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) EncodeElement(values[i], dtype, &data[i * size]);
  return tensor;
}

absl::StatusOr<std::vector<float>> FloatsFromTensor(const v1::Tensor& tensor) {
  const std::span<const int64_t> shape(tensor.shape().data(),
                                       static_cast<size_t>(tensor.shape_size()));
  const absl::StatusOr<int64_t> count = CheckedCount(shape, tensor.dtype());
  if (!count.ok()) return count.status();
  const auto size = static_cast<size_t>(DTypeBytes(tensor.dtype()));
  const std::string& data = tensor.data();
  if (data.size() != static_cast<size_t>(*count) * size) {
    return SizeError(static_cast<int64_t>(data.size()), *count, tensor.dtype());
  }
  std::vector<float> values(static_cast<size_t>(*count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = DecodeElement(&data[i * size], tensor.dtype());
  }
  return values;
}

}  // namespace nibble::client
