#include <cmath>

#include "gtest/gtest.h"
#include "nibble/quantize.h"
#include "tests/unit/kernels/quantize/fixture.h"

namespace nibble {
namespace {

WeightSpec Int4(int64_t group_size, bool zero_points) {
  WeightSpec spec;
  spec.format = Format::kInt4;
  spec.group_size = group_size;
  spec.has_zero_points = zero_points;
  return spec;
}

CanonicalWeight Searched(const TestMatrix& matrix, const WeightSpec& target) {
  auto weight = Quantize(matrix.view(), target, {.search_scale = true});
  EXPECT_TRUE(weight.ok() && ValidateWeight(*weight).ok()) << weight.status();
  return weight.ok() ? *std::move(weight) : CanonicalWeight{};
}

// Of one group of a decoded row.
double SquaredError(const std::vector<float>& decoded, const TestMatrix& matrix, int64_t begin,
                    int64_t end) {
  double sum = 0.0;
  for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
    sum += std::pow(static_cast<double>(decoded[i]) - matrix.values[i], 2);
  }
  return sum;
}

TEST(QuantizeSearch, NoGroupGetsWorseAndMostGetBetter) {
  const TestMatrix matrix = RandomMatrix(DType::kF32, 64, 256, 11);
  for (bool zero_points : {false, true}) {
    const WeightSpec target = Int4(64, zero_points);
    const auto plain = DecodeAll(QuantizeOrDie(matrix, target));
    const auto searched = DecodeAll(Searched(matrix, target));
    int better = 0;
    for (int64_t begin = 0; begin < 64 * 256; begin += 64) {
      const double before = SquaredError(plain, matrix, begin, begin + 64);
      const double after = SquaredError(searched, matrix, begin, begin + 64);
      EXPECT_LE(after, before * (1 + 1e-6)) << begin;
      better += after < 0.99 * before ? 1 : 0;
    }
    EXPECT_GT(better, 128) << zero_points;
  }
}

TEST(QuantizeSearch, AnExactScaleIsKept) {
  // Multiples of 0.25 from -8 to 7 steps: the whole range has no error but at the one end.
  std::vector<float> values;
  for (int q = 0; q < 16; ++q) values.push_back(static_cast<float>(q - 5) * 0.25f);
  const TestMatrix matrix = MakeMatrix(DType::kF32, 1, 16, values);
  EXPECT_EQ(DecodeAll(Searched(matrix, Int4(16, true))), values);
}

TEST(QuantizeSearch, ZerosStayZeros) {
  const TestMatrix matrix = MakeMatrix(DType::kF32, 2, 8, std::vector<float>(16, 0.0f));
  for (bool zero_points : {false, true}) {
    for (float value : DecodeAll(Searched(matrix, Int4(4, zero_points)))) EXPECT_EQ(value, 0.0f);
  }
}

}  // namespace
}  // namespace nibble
