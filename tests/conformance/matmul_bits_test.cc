// What matmul promises bit for bit: decoded weights through identity activations, repeats, and rows
// that do not depend on their neighbours.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/conformance/layer.h"
#include "tests/conformance/params.h"
#include "tests/conformance/runner.h"

namespace nibble::conformance {
namespace {

constexpr int64_t kN = 37;
constexpr int64_t kK = 531;

// Bits of a value, -0 as 0: a sum that starts at 0 cannot give -0.
uint32_t BitsWithoutZeroSign(const HostMatrix& matrix, int64_t row, int64_t col) {
  return matrix.At(row, col) == 0.0f ? 0 : matrix.BitsAt(row, col);
}

HostMatrix Row(const HostMatrix& matrix, int64_t row) { return matrix.Rows(row, 1); }

void Overwrite(HostMatrix& matrix, int64_t row, const HostMatrix& with, int64_t with_row) {
  for (int64_t col = 0; col < matrix.cols; ++col) matrix.Set(row, col, with.At(with_row, col));
}

class MatmulBitsTest : public ::testing::TestWithParam<BackendAndVariant> {
 protected:
  const Backend backend_ = std::get<0>(GetParam());
  const Variant variant_ = std::get<1>(GetParam());
  Runner runner_{*DevicesOf(backend_)[0]};
};

TEST_P(MatmulBitsTest, IdentityActivationsReturnTheDecodedWeights) {
  Variant without_bias = variant_;
  without_bias.spec.has_bias = false;
  const CanonicalWeight weight = RandomWeight(without_bias.SpecOf(61, 163), 1);
  const HostMatrix decoded = Decode(weight);
  const auto uploaded = runner_.Upload(weight);
  HostMatrix identity(DType::kF32, 163, 163);
  for (int64_t k = 0; k < 163; ++k) identity.Set(k, k, 1.0f);

  for (const int64_t rows : {int64_t{163}, int64_t{1}}) {
    for (int64_t first = 0; first < 163; first += rows == 1 ? 13 : rows) {
      const HostMatrix y =
          runner_.Matmul(*uploaded, {.x = identity.Rows(first, rows)}, DType::kF32);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t n = 0; n < 61; ++n) {
          ASSERT_EQ(BitsWithoutZeroSign(y, row, n), BitsWithoutZeroSign(decoded, n, first + row))
              << "W[" << n << ", " << first + row << "]: expected " << decoded.At(n, first + row)
              << ", received " << y.At(row, n);
        }
      }
    }
  }
}

TEST_P(MatmulBitsTest, RepeatsAreEqual) {
  const auto uploaded = runner_.Upload(RandomWeight(variant_.SpecOf(kN, kK), 2));
  for (const int64_t m : {3, 33}) {
    const MatmulInput input{.x = RandomActivations(DType::kBF16, m, kK, 3)};
    const HostMatrix first = runner_.Matmul(*uploaded, input, DType::kF32);
    for (int repeat = 1; repeat < 100; ++repeat) {
      ASSERT_EQ(runner_.Matmul(*uploaded, input, DType::kF32), first) << "repeat " << repeat;
    }
  }
}

TEST_P(MatmulBitsTest, ARowDoesNotDependOnTheOthers) {
  const auto uploaded = runner_.Upload(RandomWeight(variant_.SpecOf(kN, kK), 4));
  const HostMatrix x = RandomActivations(DType::kF16, 140, kK, 5);
  const HostMatrix other = RandomActivations(DType::kF16, 140, kK, 6);
  const HostMatrix y = runner_.Matmul(*uploaded, {.x = x}, DType::kF32);

  // Every row among other rows, at the same place.
  HostMatrix mixed = other;
  for (int64_t row = 0; row < 140; row += 3) Overwrite(mixed, row, x, row);
  const HostMatrix mixed_y = runner_.Matmul(*uploaded, {.x = mixed}, DType::kF32);
  for (int64_t row = 0; row < 140; row += 3) EXPECT_EQ(Row(mixed_y, row), Row(y, row)) << row;

  if (!backend_.batch_invariant) return;
  for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 127, 128, 129}) {
    // At another place of a smaller batch.
    const int64_t first = 140 - m;
    const HostMatrix part = runner_.Matmul(*uploaded, {.x = x.Rows(first, m)}, DType::kF32);
    for (int64_t row = 0; row < m; ++row) {
      EXPECT_EQ(Row(part, row), Row(y, first + row)) << "M=" << m << " row " << row;
    }
  }
}

TEST_P(MatmulBitsTest, ARowDependsOnNothingElseInBatchInvariantMode) {
  constexpr int64_t kMost = 512;
  struct Size {
    int64_t n;
    int64_t k;
  };
  // Chains of the GEMV's units of no length, one, and two or three.
  for (const Size size : {Size{37, 531}, Size{37, 4243}}) {
    const auto uploaded = runner_.Upload(RandomWeight(variant_.SpecOf(size.n, size.k), 21));
    runner_.set_batch_invariant(true);
    const bool fp8 = variant_.spec.format == Format::kFP8;
    for (const QuantMode mode : {QuantMode::kNone, QuantMode::kPerToken}) {
      if (mode != QuantMode::kNone && !fp8) continue;
      const HostMatrix x = RandomActivations(DType::kBF16, kMost, size.k, 22);
      const HostMatrix y = runner_.Matmul(*uploaded, {.x = x, .activation = mode}, DType::kF32);
      for (const int64_t m : {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 129, 300}) {
        // Some of the rows, other ones between them.
        HostMatrix some = RandomActivations(DType::kBF16, m, size.k, 23 + m);
        const int64_t first = 31 * m % (kMost - m);
        for (int64_t row = 0; row < m; row += 1 + row % 3) Overwrite(some, row, x, first + row);
        const HostMatrix z =
            runner_.Matmul(*uploaded, {.x = some, .activation = mode}, DType::kF32);
        for (int64_t row = 0; row < m; row += 1 + row % 3) {
          ASSERT_EQ(Row(z, row), Row(y, first + row)) << "M = " << m << ", row " << row;
        }
      }
    }
  }
}

TEST_P(MatmulBitsTest, SpecialRowsStayInTheirRows) {
  const CanonicalWeight weight = RandomWeight(variant_.SpecOf(kN, kK), 7);
  const auto uploaded = runner_.Upload(weight);
  for (const int64_t m : {6, 70}) {
    const HostMatrix x = RandomActivations(DType::kBF16, m, kK, 8);
    HostMatrix special = x;
    special.Set(1, 17, std::numeric_limits<float>::quiet_NaN());
    special.Set(3, 400, std::numeric_limits<float>::infinity());
    for (int64_t k = 0; k < kK; ++k) special.Set(4, k, 0.0f);
    const HostMatrix clean_y = runner_.Matmul(*uploaded, {.x = x}, DType::kF32);
    const HostMatrix y = runner_.Matmul(*uploaded, {.x = special}, DType::kF32);
    for (int64_t row = 0; row < m; ++row) {
      if (row != 1 && row != 3 && row != 4) {
        EXPECT_EQ(Row(y, row), Row(clean_y, row)) << row;
      }
    }
    for (int64_t n = 0; n < kN; ++n) {
      const float bias =
          weight.spec.has_bias ? LoadAsFloat(weight.bias.data(), weight.spec.bias_dtype, n) : 0.0f;
      EXPECT_TRUE(std::isnan(y.At(1, n))) << n;
      EXPECT_FALSE(std::isfinite(y.At(3, n))) << n;  // NaN where the weight is 0
      EXPECT_EQ(y.At(4, n), bias) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MatmulBitsTest,
                         ::testing::Combine(::testing::ValuesIn(AllBackends()),
                                            ::testing::ValuesIn(AllVariants())),
                         NameOf);

class FewRowsTest : public ::testing::TestWithParam<Backend> {
 protected:
  // x's rows from `first` on, multiplied alone, against those of y, which are of all of x.
  void ExpectRowsOf(const HostMatrix& y, const DeviceWeight& weight, const HostMatrix& x,
                    int64_t first, int64_t m) {
    const HostMatrix part = runner_.Matmul(weight, {.x = x.Rows(first, m)}, DType::kF32);
    for (int64_t row = 0; row < m; ++row) {
      ASSERT_EQ(Row(part, row), Row(y, first + row)) << "M = " << m << ", row " << row;
    }
  }

  // Rows of every batch of a few against the same rows of one of 33.
  void ExpectSameRows(const Variant& variant, int64_t n, int64_t k, std::vector<int64_t> ms) {
    SCOPED_TRACE(variant.name + " " + std::to_string(n) + "x" + std::to_string(k));
    const auto uploaded = runner_.Upload(RandomWeight(variant.SpecOf(n, k), 31));
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const HostMatrix x = RandomActivations(dtype, 33, k, 32);
      const HostMatrix y = runner_.Matmul(*uploaded, {.x = x}, DType::kF32);
      for (const int64_t m : ms) {
        ASSERT_NO_FATAL_FAILURE(ExpectRowsOf(y, *uploaded, x, std::max<int64_t>(33 - 2 * m, 0), m));
      }
    }
  }

  Runner runner_{*DevicesOf(GetParam())[0]};
};

// Kernels of a GPU differ with the number of tiles, inputs and rows.
TEST_P(FewRowsTest, HaveTheSameBitsInEveryBatchWhereAsked) {
  runner_.set_batch_invariant(true);
  std::vector<int64_t> all;
  for (int64_t m = 1; m <= 16; ++m) all.push_back(m);
  for (const Variant& variant : AllVariants()) {
    const bool few_bits =
        variant.spec.format == Format::kNF4 || variant.spec.format == Format::kInt4;
    if ((!few_bits && variant.name != "fp8_channel_bias") || variant.spec.has_group_index) continue;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{37, 4096},
                               {70, 1920},
                               {4250, 256},
                               {37, 4352},
                               {33, 9088},
                               {37, 12416},
                               {20, 640},
                               {40, 100},
                               {9, 4224}}) {
      ExpectSameRows(variant, n, k, all);
    }
    if (variant.name == "nf4_nested" || variant.name == "int4_group_128") {
      for (const int64_t k : {4096, 4224, 8320}) ExpectSameRows(variant, 4300, k, {1, 8, 16});
      // Blocks of several tiles, the last of which has fewer.
      ExpectSameRows(variant, 2190, 4096, {1, 2, 3, 5, 8});
      ExpectSameRows(variant, 2190, 9088, {1, 4, 6, 7});
      ExpectSameRows(variant, 8500, 4224, {1, 3, 8});
      // More parts of x than there is room for.
      ExpectSameRows(variant, 8500, 7552, {1, 8});
    }
    if (variant.name == "int4_group_32_zp" || variant.name == "int4_group_128") {
      ExpectSameRows(variant, 4299, 5150, {1, 5, 8});
    }
    if (variant.name == "fp8_channel_bias") {
      ExpectSameRows(variant, 4300, 4224, {1, 8, 16});
      ExpectSameRows(variant, 5000, 4224, {5, 9, 16});
      // Rows that fit a block's shared memory, and that only halves of fit, with more to spare.
      ExpectSameRows(variant, 37, 10500, {7, 8});
      ExpectSameRows(variant, 37, 20000, {4, 5, 7, 8});
      ExpectSameRows(variant, 5000, 10500, {8});
    }
  }
}

// One variant of INT4 units without zero points, with them, and of tables.
bool StandsForItsUnits(const Variant& variant) {
  return variant.name == "int4_group_128" || variant.name == "int4_group_32_zp" ||
         variant.name == "nf4_nested";
}

// By default, too, 1 to 8 rows have the bits of one order, by one kernel or two.
TEST_P(FewRowsTest, HaveTheSameBitsAmongOneToEightByDefault) {
  constexpr struct {
    int64_t n, k;
    bool table_only;
  } kCases[] = {{37, 4352, false},   {33, 9088, false},   {2190, 5120, false}, {4300, 4224, false},
                {8500, 4224, false}, {4300, 2048, true},  {37, 640, false},    {33, 4096, false},
                {2190, 384, false},  {4200, 1408, false}, {37, 12416, false},  {37, 29184, false}};
  for (const Variant& variant : AllVariants()) {
    if (!StandsForItsUnits(variant)) continue;
    for (const auto& [n, k, table_only] : kCases) {
      if (table_only && variant.spec.format == Format::kInt4) continue;
      SCOPED_TRACE(fmt::format("{} {}x{}", variant.name, n, k));
      const CanonicalWeight weight = RandomWeight(variant.SpecOf(n, k), 41);
      if (n < 4000) {
        Layer layer(GetParam(), runner_, weight);
        for (const int64_t m : {1, 8}) layer.ExpectOracle(m, DType::kF16, DType::kF32, 42);
      }
      const auto uploaded = runner_.Upload(weight);
      const HostMatrix x = RandomActivations(DType::kBF16, 8, k, 43);
      const HostMatrix y = runner_.Matmul(*uploaded, {.x = x}, DType::kF32);
      for (const int64_t m : {1, 2, 3, 5, 7}) {
        ASSERT_NO_FATAL_FAILURE(ExpectRowsOf(y, *uploaded, x, 8 - m, m));
      }
    }
  }
}

// INT4 of few inputs and outputs is of another kernel from 5 rows on, with the same bits.
TEST_P(FewRowsTest, OfFewInputsAreNearTheOracleByDefault) {
  for (const Variant& variant : AllVariants()) {
    if (!StandsForItsUnits(variant)) continue;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{37, 531}, {33, 4096}, {2190, 384}}) {
      SCOPED_TRACE(fmt::format("{} {}x{}", variant.name, n, k));
      Layer layer(GetParam(), runner_, RandomWeight(variant.SpecOf(n, k), 44));
      for (const int64_t m : {1, 4, 5, 8}) layer.ExpectOracle(m, DType::kBF16, DType::kBF16, 45);
    }
  }
}

// So many outputs that a GPU shares K between two blocks, or gives all of it to one.
TEST_P(FewRowsTest, HaveTheSameBitsWithManyOutputsAsAmongManyRows) {
  runner_.set_batch_invariant(true);
  for (const Variant& variant : AllVariants()) {
    if (variant.name != "int4_group_128" && variant.name != "int4_group_32_zp" &&
        variant.name != "nf4_nested" && variant.name != "fp4_nested" &&
        variant.name != "fp8_channel_bias") {
      continue;
    }
    std::vector<std::pair<int64_t, int64_t>> sizes = {{8500, 384}, {16900, 512}};
    // Longer sums, and warps that take several tiles; of few formats and without the oracle, for
    // time.
    if (variant.name == "int4_group_128" || variant.name == "nf4_nested") {
      sizes.insert(sizes.end(), {{8500, 2304}, {28700, 1152}, {33900, 384}});
    }
    // Two rounds of 16 units.
    if (variant.name == "int4_group_128") sizes.emplace_back(16900, 2432);
    for (const auto& [n, k] : sizes) {
      SCOPED_TRACE(fmt::format("{} {}x{}", variant.name, n, k));
      const CanonicalWeight weight = RandomWeight(variant.SpecOf(n, k), 35);
      if (n < 20'000) {
        Layer layer(GetParam(), runner_, weight);
        layer.ExpectOracle(3, DType::kBF16, DType::kBF16, 36);
      }
      const auto uploaded = runner_.Upload(weight);
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        const HostMatrix x = RandomActivations(dtype, 66, k, 38);
        const HostMatrix y = runner_.Matmul(*uploaded, {.x = x}, DType::kF32);
        for (const int64_t m : {1, 8, 9, 17, 33}) {
          ASSERT_NO_FATAL_FAILURE(ExpectRowsOf(y, *uploaded, x, m, m));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FewRowsTest, ::testing::ValuesIn(AllBackends()),
                         ::testing::PrintToStringParamName());

class CodesTest : public ::testing::TestWithParam<Backend> {
 protected:
  Runner runner_{*DevicesOf(GetParam())[0]};
};

// y [1, N] of one activation of 1 over a weight [N, 1], or decoded directly.
void ExpectWeights(Runner& runner, const CanonicalWeight& weight) {
  const HostMatrix decoded = Decode(weight);
  const auto uploaded = runner.Upload(weight);
  const HostMatrix rows = runner.Dequantize(*uploaded, 0, weight.spec.n, DType::kF32);
  HostMatrix one(DType::kF32, 1, weight.spec.k);
  one.Set(0, 0, 1.0f);
  const HostMatrix y = runner.Matmul(*uploaded, {.x = one}, DType::kF32);
  for (int64_t n = 0; n < weight.spec.n; ++n) {
    if (std::isnan(decoded.At(n, 0))) {
      EXPECT_TRUE(std::isnan(rows.At(n, 0))) << n;
      EXPECT_TRUE(std::isnan(y.At(0, n))) << n;
      continue;
    }
    EXPECT_EQ(rows.BitsAt(n, 0), decoded.BitsAt(n, 0)) << n;
    EXPECT_EQ(BitsWithoutZeroSign(y, 0, n), BitsWithoutZeroSign(decoded, n, 0)) << n;
  }
}

TEST_P(CodesTest, All256E4M3CodesWithNan) {
  CanonicalWeight weight;
  weight.spec.format = Format::kFP8;
  weight.spec.n = 256;
  weight.spec.k = 1;
  std::vector<std::byte> codes;
  for (int code = 0; code < 256; ++code) codes.push_back(static_cast<std::byte>(code));
  weight.codes = HostBytes(std::move(codes));
  HostMatrix scale(DType::kF32, 1, 1);
  scale.Set(0, 0, 0.37f);
  weight.scales = ToHostBytes(scale);
  ExpectWeights(runner_, weight);
}

TEST_P(CodesTest, AllFourBitCodesWithAllZeroPoints) {
  for (const Format format : {Format::kNF4, Format::kFP4, Format::kInt4}) {
    SCOPED_TRACE(FormatName(format));
    // Row n: code n % 16, zero point n / 16.
    CanonicalWeight weight;
    WeightSpec& spec = weight.spec;
    spec.format = format;
    spec.n = 256;
    spec.k = format == Format::kInt4 ? 1 : 64;  // one block a row
    spec.group_size = 1;
    spec.has_zero_points = format == Format::kInt4;
    const int64_t row_bytes = CeilDiv(spec.k, 2);
    std::vector<std::byte> codes;
    std::vector<std::byte> zeros;
    HostMatrix scales(DType::kF32, 256, 1);
    for (int64_t n = 0; n < 256; ++n) {
      codes.insert(codes.end(), static_cast<size_t>(row_bytes),
                   static_cast<std::byte>(n % 16 * 17));
      zeros.push_back(static_cast<std::byte>(n / 16));
      scales.Set(n, 0, 0.01f + 0.003f * static_cast<float>(n));
    }
    weight.codes = HostBytes(std::move(codes));
    weight.scales = ToHostBytes(scales);
    if (spec.has_zero_points) weight.zero_points = HostBytes(std::move(zeros));
    ExpectWeights(runner_, weight);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CodesTest, ::testing::ValuesIn(AllBackends()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace nibble::conformance
