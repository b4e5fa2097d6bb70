#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nibble/format.h"
#include "nibble/quantize.h"
#include "tests/unit/kernels/quantize/fixture.h"

namespace nibble {
namespace {

constexpr int kFP4Order[8] = {0, 1, 6, 7, 4, 5, 2, 3};  // codes by magnitude

WeightSpec Target(Format format) {
  WeightSpec spec;
  spec.format = format;
  return spec;
}

int CodeAt(const CanonicalWeight& weight, int64_t index) {
  const int byte = ByteAt(weight.codes, index / 2);
  return index % 2 == 0 ? byte >> 4 : byte & 15;
}

// The codes that values of a block with absmax 1 get.
std::vector<int> CodesOf(Format format, std::vector<float> values) {
  values.push_back(1.0f);
  const auto size = static_cast<int64_t>(values.size());
  const CanonicalWeight weight =
      QuantizeOrDie(MakeMatrix(DType::kF32, 1, size, values), Target(format));
  std::vector<int> codes;
  for (int64_t i = 0; i + 1 < size; ++i) codes.push_back(CodeAt(weight, i));
  return codes;
}

TEST(QuantizeNF4, TiesGoToTheLowerCode) {
  for (int i = 0; i < 15; ++i) {
    const float tie = (kNF4Table[i] + kNF4Table[i + 1]) / 2.0f;
    EXPECT_THAT(CodesOf(Format::kNF4, {tie, std::nextafter(tie, -1.0f), std::nextafter(tie, 1.0f)}),
                ::testing::ElementsAre(i, i, i + 1));
  }
}

// Midpoints of neighbours go to the lower value, whatever its sign.
TEST(QuantizeFP4, TiesGoToTheLowerValue) {
  for (int i = 0; i < 7; ++i) {
    const float tie = (kFP4Table[kFP4Order[i]] + kFP4Table[kFP4Order[i + 1]]) / 2.0f;
    const float above = std::nextafter(tie, 1.0f);
    const float below = std::nextafter(tie, 0.0f);
    // The positive zero step is code 8, the negative one code 0.
    const int small = i == 0 ? 8 : kFP4Order[i];
    const int negative = i == 0 ? 0 : kFP4Order[i] | 8;
    EXPECT_THAT(CodesOf(Format::kFP4, {tie, above, -tie, -below}),
                ::testing::ElementsAre(small, kFP4Order[i + 1], kFP4Order[i + 1] | 8, negative))
        << i;
  }
  EXPECT_THAT(CodesOf(Format::kFP4, {0.0f, -0.0f, -0.001f, 0.001f}),
              ::testing::ElementsAre(0, 0, 0, 8));
}

TEST(QuantizeTable, EveryEntryRoundTrips) {
  for (Format format : {Format::kNF4, Format::kFP4}) {
    const float* table = format == Format::kNF4 ? kNF4Table : kFP4Table;
    for (float absmax : {1.0f, 0.0371f, 3e4f, 1e-20f}) {
      std::vector<float> values(16);
      for (size_t code = 0; code < 16; ++code) values[code] = table[code] * absmax;
      const CanonicalWeight weight =
          QuantizeOrDie(MakeMatrix(DType::kF32, 2, 8, values), Target(format));
      EXPECT_EQ(DecodeAll(weight), values);
    }
  }
}

// Every value gets the entry nearest to it, up to the rounding of value / absmax.
TEST(QuantizeTable, DecodesToTheNearestEntryForOddShapes) {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 1},  {1, 2},   {3, 5},
                                                           {7, 33}, {5, 127}, {2, 4097}};
  for (Format format : {Format::kNF4, Format::kFP4}) {
    const float* table = format == Format::kNF4 ? kNF4Table : kFP4Table;
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (int64_t block_size : {32, 64, 4096}) {
        for (const auto& [rows, cols] : shapes) {
          const TestMatrix matrix = RandomMatrix(dtype, rows, cols, 1);
          WeightSpec target = Target(format);
          target.block_size = block_size;
          const CanonicalWeight weight = QuantizeOrDie(matrix, target);
          EXPECT_EQ(weight.spec.n, rows);
          EXPECT_EQ(weight.spec.k, cols);
          EXPECT_EQ(weight.spec.dtype, dtype);
          const auto decoded = DecodeAll(weight);
          for (size_t i = 0; i < decoded.size(); ++i) {
            const float absmax = LoadAsFloat(weight.scales.data(), DType::kF32,
                                             static_cast<int64_t>(i) / block_size);
            double nearest = HUGE_VAL;
            for (int code = 0; code < 16; ++code) {
              nearest = std::min(
                  nearest, std::fabs(static_cast<double>(table[code]) * absmax - matrix.values[i]));
            }
            ASSERT_LE(std::fabs(static_cast<double>(decoded[i]) - matrix.values[i]),
                      nearest + 5e-7 * absmax)
                << ToString(weight.spec) << " element " << i;
          }
        }
      }
    }
  }
}

TEST(QuantizeTable, AbsMaxIsExact) {
  const TestMatrix matrix = RandomMatrix(DType::kF32, 3, 47, 2);
  const CanonicalWeight weight = QuantizeOrDie(matrix, Target(Format::kNF4));
  for (size_t block = 0; block < 3; ++block) {
    float absmax = 0.0f;
    for (size_t i = block * 64; i < std::min<size_t>(141, block * 64 + 64); ++i) {
      absmax = std::max(absmax, std::fabs(matrix.values[i]));
    }
    EXPECT_EQ(LoadAsFloat(weight.scales.data(), DType::kF32, static_cast<int64_t>(block)), absmax);
  }
}

TEST(QuantizeTable, ZeroBlocksGetTheCodeOfZero) {
  for (Format format : {Format::kNF4, Format::kFP4}) {
    const CanonicalWeight weight =
        QuantizeOrDie(MakeMatrix(DType::kF32, 1, 71, std::vector<float>(71, 0.0f)), Target(format));
    EXPECT_EQ(LoadAsFloat(weight.scales.data(), DType::kF32, 0), 0.0f);
    EXPECT_EQ(LoadAsFloat(weight.scales.data(), DType::kF32, 1), 1e-38f);  // a partial last block
    for (int64_t i = 0; i < 71; ++i) EXPECT_EQ(CodeAt(weight, i), format == Format::kNF4 ? 7 : 0);
    for (float value : DecodeAll(weight)) EXPECT_EQ(value, 0.0f);
  }
}

TEST(QuantizeTable, TheSpareNibbleHoldsTheCodeOfZero) {
  EXPECT_EQ(
      CodeAt(QuantizeOrDie(MakeMatrix(DType::kF32, 1, 3, {1, 1, 1}), Target(Format::kNF4)), 3), 7);
  EXPECT_EQ(
      CodeAt(QuantizeOrDie(MakeMatrix(DType::kF32, 1, 3, {1, 1, 1}), Target(Format::kFP4)), 3), 0);
}

class NestedTest : public ::testing::Test {
 protected:
  NestedTest() {
    target_.nested = true;
    target_.block_size = 32;
    target_.nested_block_size = 64;
  }
  static float Map(const CanonicalWeight& weight, int64_t index) {
    return LoadAsFloat(weight.nested_map.data(), DType::kF32, index);
  }
  WeightSpec target_ = Target(Format::kNF4);
};

TEST_F(NestedTest, MapIsTheSignedDynamicOne) {
  const CanonicalWeight weight = QuantizeOrDie(RandomMatrix(DType::kF32, 2, 40, 3), target_);
  ASSERT_EQ(weight.nested_map.size(), 1024u);
  EXPECT_EQ(Map(weight, 0), -0.992968738079071f);
  EXPECT_EQ(Map(weight, 127), 0.0f);
  EXPECT_EQ(Map(weight, 128), 5.500000384017767e-07f);
  EXPECT_EQ(Map(weight, 254), 0.992968738079071f);
  EXPECT_EQ(Map(weight, 255), 1.0f);
  for (int64_t i = 1; i < 256; ++i) EXPECT_LT(Map(weight, i - 1), Map(weight, i)) << i;
  for (int64_t i = 0; i < 127; ++i) EXPECT_EQ(Map(weight, i), -Map(weight, 254 - i)) << i;
  // Decade e has 2^e values of each sign, evenly spaced: their mean is 0.55 of the decade.
  int64_t first = 128;
  for (int e = 0; e < 7; ++e) {
    const int64_t count = int64_t{1} << e;
    double sum = 0.0;
    for (int64_t i = first; i < first + count; ++i) sum += Map(weight, i);
    EXPECT_NEAR(sum / static_cast<double>(count) / std::pow(10.0, e - 6), 0.55, 1e-6) << e;
    first += count;
  }
}

TEST_F(NestedTest, AbsMaxIsTheNearestMapEntryAroundTheMean) {
  const TestMatrix matrix = RandomMatrix(DType::kF32, 77, 131, 4);  // 316 blocks, 5 nested
  WeightSpec plain = target_;
  plain.nested = false;
  const CanonicalWeight exact = QuantizeOrDie(matrix, plain);
  const CanonicalWeight nested = QuantizeOrDie(matrix, target_);
  EXPECT_TRUE(std::ranges::equal(exact.codes.span(), nested.codes.span()));

  const auto blocks = static_cast<int64_t>(nested.scales.size());
  ASSERT_EQ(blocks, 316);
  ASSERT_EQ(nested.nested_scales.size(), 20u);
  double mean = 0.0;
  for (int64_t b = 0; b < blocks; ++b) mean += LoadAsFloat(exact.scales.data(), DType::kF32, b);
  EXPECT_FLOAT_EQ(nested.nested_offset, static_cast<float>(mean / 316.0));

  for (int64_t b = 0; b < blocks; ++b) {
    const float scale = LoadAsFloat(nested.nested_scales.data(), DType::kF32, b / 64);
    const double difference =
        static_cast<double>(LoadAsFloat(exact.scales.data(), DType::kF32, b)) -
        nested.nested_offset;
    EXPECT_LE(std::fabs(difference), scale * (1 + 1e-6));
    double nearest = HUGE_VAL;
    for (int64_t i = 0; i < 256; ++i) {
      nearest =
          std::min(nearest, std::fabs(static_cast<double>(Map(nested, i)) * scale - difference));
    }
    const double chosen = static_cast<double>(Map(nested, ByteAt(nested.scales, b))) * scale;
    // The look-up rounds to multiples of 2 / 65535 first.
    constexpr double kCell = 1.0 / 65535 + 1e-6;
    EXPECT_LE(std::fabs(chosen - difference), nearest + 2 * kCell * scale) << b;
    // Largest gap of the map: 0.9 / 64 between entries, half of it past the lowest one.
    EXPECT_LE(std::fabs(chosen - difference), scale * (0.45 / 64 + kCell)) << b;
  }
}

TEST_F(NestedTest, EqualBlocksDecodeExactly) {
  std::vector<float> values(96, 0.25f);
  const CanonicalWeight weight = QuantizeOrDie(MakeMatrix(DType::kF32, 3, 32, values), target_);
  EXPECT_EQ(weight.nested_offset, 0.25f);
  for (int64_t b = 0; b < 3; ++b) EXPECT_EQ(ByteAt(weight.scales, b), 0);
  EXPECT_EQ(DecodeAll(weight), values);
}

}  // namespace
}  // namespace nibble
