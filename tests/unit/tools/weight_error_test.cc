#include "server/tools/weight_error.h"

#include <cmath>
#include <cstring>

#include "gtest/gtest.h"
#include "nibble/quantize.h"

namespace nibble::tools {
namespace {

CanonicalWeight Dense(int64_t n, int64_t k, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  CanonicalWeight weight;
  weight.spec.dtype = DType::kF32;
  weight.spec.n = n;
  weight.spec.k = k;
  weight.codes = HostBytes(std::move(bytes));
  return weight;
}

TEST(MeasureError, IsTheNormOfTheDifference) {
  const auto error = MeasureError(Dense(1, 2, {3, 4}), Dense(1, 2, {3, 4.5f}), 1);
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_DOUBLE_EQ(error->relative, 0.1);
  EXPECT_DOUBLE_EQ(error->largest, 0.5);
}

TEST(MeasureError, ZerosHaveNone) {
  const auto error = MeasureError(Dense(1, 2, {0, 0}), Dense(1, 2, {0, 0}), 0);
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->relative, 0.0);
}

TEST(MeasureError, DoesNotDependOnThreads) {
  std::vector<float> values(900 * 513);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const CanonicalWeight dense = Dense(900, 513, values);
  WeightSpec nf4;
  nf4.format = Format::kNF4;
  const auto quantized = Quantize(MakeConstView(values.data(), DType::kF32, 900, 513), nf4);
  const auto one = MeasureError(dense, *quantized, 1);
  for (int threads : {2, 3, 8}) {
    const auto several = MeasureError(dense, *quantized, threads);
    EXPECT_EQ(several->relative, one->relative);
    EXPECT_EQ(several->largest, one->largest);
  }
  EXPECT_GT(one->relative, 0.01);
}

}  // namespace
}  // namespace nibble::tools
