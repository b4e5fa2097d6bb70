// Element types and non-owning views of row-major matrices.
#ifndef NIBBLE_TENSOR_H_
#define NIBBLE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace nibble {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kI8 };

constexpr size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kI8:
      return 1;
  }
  return 0;
}

// The safetensors name: "F32", "F16", "BF16", "F8_E4M3", "I8".
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kI8:
      return "I8";
  }
  return "?";
}

// True for the types that activations and results are computed in: F32, F16, BF16.
constexpr bool IsFloat16Or32(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// a * b, or nothing where the product does not fit 63 bits. Sizes from callers and files go through
// this before anything is allocated. Negative factors give nothing.
constexpr std::optional<int64_t> CheckedMul(int64_t a, int64_t b) {
  if (a < 0 || b < 0) return std::nullopt;
  if (b != 0 && a > std::numeric_limits<int64_t>::max() / b) return std::nullopt;
  return a * b;
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// A row-major matrix of `rows` x `cols` elements that this view does not own. Memory is reachable
// by the device that the view is handed to. Consecutive rows lie `row_stride` elements apart; a
// row_stride of 0 repeats one row.
template <typename Void>
struct BasicMatrixView {
  Void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;

  bool empty() const { return data == nullptr; }
  int64_t row_stride_bytes() const { return row_stride * static_cast<int64_t>(DTypeBytes(dtype)); }
};

using ConstMatrixView = BasicMatrixView<const void>;
using MatrixView = BasicMatrixView<void>;

inline ConstMatrixView MakeConstView(const void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}
inline MatrixView MakeView(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

}  // namespace nibble

#endif  // NIBBLE_TENSOR_H_
