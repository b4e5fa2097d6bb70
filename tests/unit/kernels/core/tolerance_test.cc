#include "tests/support/tolerance.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(MatmulTolerance, IsTheFormula) {
  EXPECT_DOUBLE_EQ(MatmulTolerance(64, 3.0, 2.0, -5.0, DType::kF32),
                   8 * 0x1p-24 * 8 * 6 * (1 + 0x1p-24) + 2 * 0x1p-24 * 5 + 65 * 0x1p-126);
  EXPECT_DOUBLE_EQ(MatmulTolerance(4, 1.0, 1.0, 1.0, DType::kBF16, {.eps_w = kEpsWeightBF16}),
                   (8 * 0x1p-24 * 2 + 0x1p-8) * (1 + 0x1p-8) + 0x1p-8 + 0x1p-24 + 5 * 0x1p-126);
}

// The worst order of one sum in binary32 stays within the bound: K equal terms of one sign.
TEST(MatmulTolerance, HoldsForALongSumOfOneSign) {
  constexpr int kK = 4096;
  constexpr float kX = 1.1f, kW = 0.7f;
  float sum = 0.0f;
  for (int k = 0; k < kK; ++k) sum += kX * kW;
  const double y64 = static_cast<double>(kX) * kW * kK;
  const double norm_product = static_cast<double>(kX) * kW * kK;
  const double bound = MatmulTolerance(kK, norm_product, 1.0, y64, DType::kF32);
  EXPECT_LE(std::fabs(sum - y64), bound);
  EXPECT_LT(bound, y64 * 1e-4);
}

TEST(CompareMatmul, ReportsTheWorstElement) {
  const std::vector<float> y = {1.0f, 2.0f, 3.0f, 4.0f, 5.1f, 6.0f};
  const std::vector<double> expected = {1, 2.001, 3, 4, 5, 6};
  const std::vector<double> x_norms = {1, 1}, w_norms = {1, 1, 1};
  const auto report =
      CompareMatmul(MakeConstView(y.data(), DType::kF32, 2, 3), expected, x_norms, w_norms, 16);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.compared, 6);
  EXPECT_EQ(report.failures, 2);
  EXPECT_EQ(report.row, 1);
  EXPECT_EQ(report.col, 1);
  EXPECT_THAT(
      report.ToString(),
      HasSubstr("2 of 6 elements out of tolerance; worst [1, 1]: expected 5, received 5.0"));
}

TEST(CompareMatmul, RefusesAnOracleOfAnotherShape) {
  const float y[2] = {0, 0};
  const std::vector<double> expected(2), norms(1), two(2);
  const auto view = MakeConstView(y, DType::kF32, 1, 2);
  EXPECT_TRUE(CompareMatmul(view, expected, norms, two, 1).ok());
  EXPECT_FALSE(CompareMatmul(view, norms, norms, two, 1).ok());
  EXPECT_FALSE(CompareMatmul(view, expected, two, two, 1).ok());
  EXPECT_FALSE(CompareMatmul(view, expected, norms, norms, 1).ok());
}

TEST(ErrorOverBound, SpecialValues) {
  EXPECT_EQ(ErrorOverBound(kNaN, kNaN, kNaN, DType::kF32), 0.0);
  EXPECT_EQ(ErrorOverBound(kNaN, 1.0, 1.0, DType::kF32), kInf);
  EXPECT_EQ(ErrorOverBound(1.0, kNaN, 1.0, DType::kF32), kInf);
  EXPECT_EQ(ErrorOverBound(kInf, kInf, kNaN, DType::kF32), 0.0);
  EXPECT_EQ(ErrorOverBound(kInf, -kInf, kNaN, DType::kF32), kInf);
  EXPECT_EQ(ErrorOverBound(kInf, 3e38, kInf, DType::kF32), kInf);
  EXPECT_EQ(ErrorOverBound(65000.0, kInf, 1.0, DType::kF16), kInf);
  EXPECT_EQ(ErrorOverBound(65519.5, kInf, 1.0, DType::kF16), 0.0);
  EXPECT_EQ(ErrorOverBound(65519.5, -kInf, 1.0, DType::kF16), kInf);
  EXPECT_EQ(ErrorOverBound(1e6, kInf, 1.0, DType::kBF16), kInf);
  EXPECT_EQ(ErrorOverBound(1.0, 1.0, kNaN, DType::kF32), kInf);
  EXPECT_EQ(ErrorOverBound(1.0, 1.5, 1.0, DType::kF32), 0.5);
}

TEST(RowNorms, OfStridedRows) {
  const float values[6] = {3, 4, 99, 0, -2, 99};
  EXPECT_THAT(RowNorms({values, DType::kF32, 2, 2, 3}), ElementsAre(5.0, 2.0));
}

}  // namespace
}  // namespace nibble::testing
