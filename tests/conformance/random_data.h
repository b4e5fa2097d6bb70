// Host matrices, and random ones that are the same on every machine.
#ifndef NIBBLE_TESTS_CONFORMANCE_RANDOM_DATA_H_
#define NIBBLE_TESTS_CONFORMANCE_RANDOM_DATA_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "nibble/numeric.h"
#include "nibble/tensor.h"

namespace nibble::conformance {

// SplitMix64: its sequence is part of the tests, unlike the standard library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [0, count).
  int64_t Below(int64_t count) {
    return static_cast<int64_t>(Bits() % static_cast<uint64_t>(count));
  }
  // In [low, high).
  float Uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(Bits() >> 40) * 0x1p-24f);
  }
  // Of either sign, never 0, spread over several binades as activations are.
  float Activation() {
    const float magnitude =
        Uniform(0.5f, 1.0f) * std::bit_cast<float>(uint32_t(124 + Below(5)) << 23);
    return Below(2) == 0 ? magnitude : -magnitude;
  }

 private:
  uint64_t state_;
};

// A dense matrix in host memory.
struct HostMatrix {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<std::byte> bytes;

  HostMatrix() = default;
  HostMatrix(DType type, int64_t row_count, int64_t col_count)
      : dtype(type),
        rows(row_count),
        cols(col_count),
        bytes(static_cast<size_t>(row_count * col_count) * DTypeBytes(type)) {}

  float At(int64_t row, int64_t col) const {
    return LoadAsFloat(bytes.data(), dtype, row * cols + col);
  }
  void Set(int64_t row, int64_t col, float value) {
    StoreFromFloat(bytes.data(), dtype, row * cols + col, value);
  }
  // The stored bits of an element.
  uint32_t BitsAt(int64_t row, int64_t col) const {
    uint32_t bits = 0;
    const auto size = DTypeBytes(dtype);
    std::memcpy(&bits, bytes.data() + static_cast<size_t>(row * cols + col) * size, size);
    return bits;
  }
  // Rows [begin, begin + count).
  HostMatrix Rows(int64_t begin, int64_t count) const {
    HostMatrix part(dtype, count, cols);
    const auto row_bytes = static_cast<size_t>(cols) * DTypeBytes(dtype);
    if (!part.bytes.empty()) {
      std::memcpy(part.bytes.data(), bytes.data() + static_cast<size_t>(begin) * row_bytes,
                  part.bytes.size());
    }
    return part;
  }
  ConstMatrixView view() const { return MakeConstView(bytes.data(), dtype, rows, cols); }

  bool operator==(const HostMatrix&) const = default;
};

inline HostMatrix RandomActivations(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  HostMatrix matrix(dtype, rows, cols);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) matrix.Set(row, col, random.Activation());
  }
  return matrix;
}

}  // namespace nibble::conformance

#endif  // NIBBLE_TESTS_CONFORMANCE_RANDOM_DATA_H_
