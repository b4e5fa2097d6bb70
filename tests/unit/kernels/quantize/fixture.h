// Random matrices and readers of canonical parts for the quantizer's tests.
#ifndef NIBBLE_TESTS_UNIT_KERNELS_QUANTIZE_FIXTURE_H_
#define NIBBLE_TESTS_UNIT_KERNELS_QUANTIZE_FIXTURE_H_

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "nibble/numeric.h"
#include "nibble/quantize.h"

namespace nibble {

// A matrix of `dtype` and the binary32 values it holds.
struct TestMatrix {
  std::vector<unsigned char> bytes;
  std::vector<float> values;
  DType dtype;
  int64_t rows;
  int64_t cols;
  ConstMatrixView view() const { return MakeConstView(bytes.data(), dtype, rows, cols); }
};

inline TestMatrix MakeMatrix(DType dtype, int64_t rows, int64_t cols, std::vector<float> values) {
  TestMatrix matrix{std::vector<unsigned char>(values.size() * DTypeBytes(dtype)),
                    std::move(values), dtype, rows, cols};
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    StoreFromFloat(matrix.bytes.data(), dtype, index, matrix.values[i]);
    matrix.values[i] = LoadAsFloat(matrix.bytes.data(), dtype, index);
  }
  return matrix;
}

// Roughly normal values of magnitude 0.02, as linear layers have, with an outlier now and then.
inline TestMatrix RandomMatrix(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (float& value : values) {
    float sum = 0.0f;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f;
    value = sum * 0.035f * (random() % 61 == 0 ? 12.0f : 1.0f);
  }
  return MakeMatrix(dtype, rows, cols, std::move(values));
}

inline CanonicalWeight QuantizeOrDie(const TestMatrix& matrix, const WeightSpec& target) {
  auto weight = Quantize(matrix.view(), target);
  EXPECT_TRUE(weight.ok()) << weight.status();
  EXPECT_TRUE(weight.ok() && ValidateWeight(*weight).ok());
  return weight.ok() ? *std::move(weight) : CanonicalWeight{};
}

inline std::vector<float> DecodeAll(const CanonicalWeight& weight) {
  std::vector<float> out(static_cast<size_t>(weight.spec.n * weight.spec.k));
  const Status status = DecodeReference(weight, 0, weight.spec.n, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

inline int ByteAt(const HostBytes& bytes, int64_t index) {
  return std::to_integer<int>(bytes.data()[index]);
}

inline float ScaleAt(const CanonicalWeight& weight, int64_t index) {
  return LoadAsFloat(weight.scales.data(), weight.spec.scale_dtype, index);
}

}  // namespace nibble

#endif  // NIBBLE_TESTS_UNIT_KERNELS_QUANTIZE_FIXTURE_H_
