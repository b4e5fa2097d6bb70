// norm_quant and silu_mul_quant against the unfused sequences: unquantized results against the
// host, quantized ones bit for bit against the host's quantization of the backend's own unquantized
// rows.
#include <cmath>
#include <limits>
#include <optional>

#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/reference.h"
#include "tests/conformance/runner.h"

namespace nibble::conformance {
namespace {

constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr int64_t kAlignedLongWidth = 32776;
// The last two are past what kernels keep of a row in registers; the aligned one is for BF16 alone,
// for the time it takes.
constexpr int64_t kWidths[] = {1,    7, 16, 127, 128, 129, 300, 1031, 2064, 4160, kAlignedLongWidth,
                               33001};

// Random rows, with a zero row, a NaN, an infinity, and one that overflows F16 when squared.
HostMatrix RowsWithSpecials(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  HostMatrix x = RandomActivations(dtype, rows, cols, seed);
  if (rows < 7) return x;
  for (int64_t col = 0; col < cols; ++col) x.Set(1, col, 0.0f);
  x.Set(2, cols / 2, std::numeric_limits<float>::quiet_NaN());
  x.Set(4, cols - 1, std::numeric_limits<float>::infinity());
  for (int64_t col = 0; col < cols; ++col) x.Set(5, col, x.At(5, col) * 20000.0f);
  return x;
}

// Whether two rows hold the same bits, NaN meeting any NaN.
bool SameRow(const HostMatrix& a, int64_t a_row, const HostMatrix& b, int64_t b_row) {
  for (int64_t col = 0; col < a.cols; ++col) {
    const bool both_nan = std::isnan(a.At(a_row, col)) && std::isnan(b.At(b_row, col));
    if (!both_nan && a.BitsAt(a_row, col) != b.BitsAt(b_row, col)) return false;
  }
  return true;
}

void ExpectSame(const HostMatrix& received, const HostMatrix& expected, std::string_view what) {
  ASSERT_EQ(received.rows, expected.rows) << what;
  ASSERT_EQ(received.cols, expected.cols) << what;
  for (int64_t row = 0; row < expected.rows; ++row) {
    if (SameRow(received, row, expected, row)) continue;
    for (int64_t col = 0; col < expected.cols; ++col) {
      if (received.BitsAt(row, col) != expected.BitsAt(row, col)) {
        FAIL() << what << "[" << row << ", " << col << "]: expected " << expected.At(row, col)
               << ", received " << received.At(row, col);
      }
    }
  }
}

// The quantized run of an op must be the quantization of its unquantized rows.
void ExpectQuantizationOf(const HostMatrix& v, const OutputQuant& quant, DType dtype,
                          const RowOpResult& result) {
  const QuantizedRows expected = QuantizeReference(v, quant, dtype);
  ExpectSame(result.y, expected.codes, "y");
  if (quant.mode != QuantMode::kStatic) ExpectSame(result.scales, expected.scales, "scales");
}

std::vector<OutputQuant> Quantizers() {
  return {{QuantMode::kPerToken},
          {QuantMode::kPerGroup},
          {QuantMode::kStatic, 0.01f},
          {QuantMode::kStatic, 3.0f}};
}

class RowOpsTest : public ::testing::TestWithParam<Backend> {
 protected:
  // Some rsqrt within the backend's tolerance must give the whole row.
  void ExpectNormRow(const NormInput& input, const HostMatrix& h, const HostMatrix& y,
                     int64_t row) {
    const float rsqrt = RsqrtReference(h, row, input.epsilon);
    for (int ulps = -GetParam().rsqrt_ulps; ulps <= GetParam().rsqrt_ulps; ++ulps) {
      const HostMatrix v = NormRowReference(h, row, MoveUlps(rsqrt, ulps), input.gamma);
      if (SameRow(y, row, v, 0)) return;
    }
    const HostMatrix v = NormRowReference(h, row, rsqrt, input.gamma);
    for (int64_t col = 0; col < v.cols; ++col) {
      if (v.BitsAt(0, col) != y.BitsAt(row, col)) {
        FAIL() << "y[" << row << ", " << col << "]: expected " << v.At(0, col) << ", received "
               << y.At(row, col);
      }
    }
  }

  void ExpectSilu(const HostMatrix& x, const HostMatrix& y) {
    const int64_t d = x.cols / 2;
    for (int64_t row = 0; row < x.rows; ++row) {
      for (int64_t col = 0; col < d; ++col) {
        const float silu = SiluReference(x.At(row, col));
        const float received = y.At(row, col);
        bool found = false;
        float expected = 0.0f;
        for (int ulps = -GetParam().silu_ulps; ulps <= GetParam().silu_ulps && !found; ++ulps) {
          const float t = RoundTo(x.dtype, MoveUlps(silu, ulps));
          expected = RoundTo(x.dtype, t * x.At(row, d + col));
          found = std::isnan(expected)
                      ? std::isnan(received)
                      : std::bit_cast<uint32_t>(expected) == std::bit_cast<uint32_t>(received);
        }
        ASSERT_TRUE(found) << "y[" << row << ", " << col << "]: expected " << expected
                           << ", received " << received;
      }
    }
  }

  Runner runner_{*DevicesOf(GetParam())[0]};
};

TEST_P(RowOpsTest, NormEqualsTheUnfusedSequence) {
  uint64_t seed = 1;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t d : kWidths) {
      if (d == kAlignedLongWidth && dtype != DType::kBF16) continue;
      for (const int64_t m : {0, 1, 3, 17}) {
        if (m == 17 && d > 8192)
          continue;  // long rows with special values: the tests of quantizers
        SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << " " << m << "x" << d);
        NormInput input;
        input.x = RowsWithSpecials(dtype, m, d, ++seed);
        input.gamma = RandomActivations(kFloatTypes[seed % 3], 1, d, seed + 1000);
        input.epsilon = m == 3 ? 0.0f : 1e-5f;
        const RowOpResult plain = runner_.NormQuant(input);
        for (int64_t row = 0; row < m; ++row) ExpectNormRow(input, input.x, plain.y, row);

        // With a residual: its sum is what a run without one would have read.
        input.residual = RandomActivations(dtype, m, d, ++seed);
        const HostMatrix h = AddReference(input.x, input.residual);
        for (const bool in_place : {false, true}) {
          if (m == 0) continue;
          input.residual_in_place = in_place;
          runner_.set_row_padding(in_place ? 3 : 0);
          const RowOpResult added = runner_.NormQuant(input);
          ExpectSame(added.residual_out, h, "residual_out");
          NormInput unfused = input;
          unfused.x = h;
          unfused.residual = {};
          unfused.residual_in_place = false;
          ExpectSame(added.y, runner_.NormQuant(unfused).y, "y");
        }
        runner_.set_row_padding(0);
      }
    }
  }
}

TEST_P(RowOpsTest, NormQuantEqualsNormThenQuantize) {
  uint64_t seed = 100;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t d : kWidths) {
      if (d == kAlignedLongWidth && dtype != DType::kBF16) continue;
      NormInput input;
      input.x = RowsWithSpecials(dtype, 11, d, ++seed);
      input.residual = RandomActivations(dtype, 11, d, ++seed);
      input.gamma = RandomActivations(dtype, 1, d, ++seed);
      const HostMatrix v = runner_.NormQuant(input).y;
      for (const OutputQuant& quant : Quantizers()) {
        for (const DType quantized : {DType::kF8E4M3, DType::kI8}) {
          SCOPED_TRACE(::testing::Message()
                       << DTypeName(dtype) << " d=" << d << " " << QuantModeName(quant.mode) << " "
                       << DTypeName(quantized));
          input.quant = quant;
          input.quantized = quantized;
          ExpectQuantizationOf(v, quant, quantized, runner_.NormQuant(input));
        }
      }
    }
  }
}

TEST_P(RowOpsTest, SiluMulEqualsTheUnfusedSequence) {
  uint64_t seed = 200;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t d : kWidths) {
      if (d == kAlignedLongWidth && dtype != DType::kBF16) continue;
      for (const int64_t m : {0, 1, 3, 17}) {
        if (m == 17 && d > 8192)
          continue;  // long rows with special values: the tests of quantizers
        SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << " " << m << "x" << d);
        runner_.set_row_padding(m == 3 ? 3 : 0);
        const HostMatrix x = RowsWithSpecials(dtype, m, 2 * d, ++seed);
        ExpectSilu(x, runner_.SiluMulQuant({.x = x}).y);
      }
    }
  }
}

TEST_P(RowOpsTest, SiluCoversTheRangeOfTheExponential) {
  for (const DType dtype : kFloatTypes) {
    SCOPED_TRACE(DTypeName(dtype));
    // Gates from -120 to 120, past where exp(gate) over- and underflows; one value a row of eight.
    HostMatrix x(dtype, 961, 16);
    for (int64_t row = 0; row < x.rows; ++row) {
      for (int64_t col = 0; col < 8; ++col) {
        x.Set(row, col, col == row % 8 ? -120.0f + 0.25f * static_cast<float>(row) : 0.5f);
        x.Set(row, 8 + col, 1.0f);
      }
    }
    ExpectSilu(x, runner_.SiluMulQuant({.x = x}).y);
  }
}

TEST_P(RowOpsTest, SiluMulQuantEqualsSiluMulThenQuantize) {
  uint64_t seed = 300;
  for (const DType dtype : kFloatTypes) {
    for (const int64_t d : kWidths) {
      if (d == kAlignedLongWidth && dtype != DType::kBF16) continue;
      const HostMatrix x = RowsWithSpecials(dtype, 11, 2 * d, ++seed);
      const HostMatrix v = runner_.SiluMulQuant({.x = x}).y;
      for (const OutputQuant& quant : Quantizers()) {
        for (const DType quantized : {DType::kF8E4M3, DType::kI8}) {
          SCOPED_TRACE(::testing::Message()
                       << DTypeName(dtype) << " d=" << d << " " << QuantModeName(quant.mode) << " "
                       << DTypeName(quantized));
          ExpectQuantizationOf(
              v, quant, quantized,
              runner_.SiluMulQuant({.x = x, .quant = quant, .quantized = quantized}));
        }
      }
    }
  }
}

TEST_P(RowOpsTest, AZeroRowGetsTheFloorScale) {
  NormInput input;
  input.x = HostMatrix(DType::kBF16, 2, 256);
  input.gamma = RandomActivations(DType::kBF16, 1, 256, 1);
  for (const QuantMode mode : {QuantMode::kPerToken, QuantMode::kPerGroup}) {
    input.quant = {mode};
    const RowOpResult result = runner_.NormQuant(input);
    for (int64_t col = 0; col < result.scales.cols; ++col) {
      EXPECT_EQ(result.scales.At(1, col), kMinQuantScale);
    }
    for (int64_t col = 0; col < 256; ++col) EXPECT_EQ(result.y.At(1, col), 0.0f);
  }
}

TEST_P(RowOpsTest, ANanMakesItsScaleAndCodesNan) {
  HostMatrix x = RandomActivations(DType::kF32, 3, 512, 2);
  const HostMatrix clean = x;
  x.Set(1, 200, std::numeric_limits<float>::quiet_NaN());
  const OutputQuant quant{QuantMode::kPerGroup};
  const RowOpResult fp8 = runner_.SiluMulQuant({.x = x, .quant = quant});
  const RowOpResult i8 = runner_.SiluMulQuant({.x = x, .quant = quant, .quantized = DType::kI8});
  const RowOpResult clean_fp8 = runner_.SiluMulQuant({.x = clean, .quant = quant});
  // Column 200 is in the second of the two groups.
  EXPECT_TRUE(std::isnan(fp8.scales.At(1, 1)));
  EXPECT_TRUE(std::isnan(i8.scales.At(1, 1)));
  for (int64_t col = 128; col < 256; ++col) {
    EXPECT_TRUE(std::isnan(fp8.y.At(1, col))) << col;
    EXPECT_EQ(i8.y.At(1, col), 0.0f) << col;
  }
  for (int64_t col = 0; col < 128; ++col) {
    EXPECT_EQ(fp8.y.BitsAt(1, col), clean_fp8.y.BitsAt(1, col)) << col;
  }
  for (const int64_t row : {0, 2}) {
    EXPECT_TRUE(SameRow(fp8.y, row, clean_fp8.y, row)) << row;
    EXPECT_TRUE(SameRow(fp8.scales, row, clean_fp8.scales, row)) << row;
  }
}

TEST_P(RowOpsTest, RowsDoNotDependOnTheOthersAndRepeatsAreEqual) {
  NormInput norm;
  norm.x = RandomActivations(DType::kBF16, 67, 1000, 3);
  norm.gamma = RandomActivations(DType::kBF16, 1, 1000, 4);
  norm.quant = {QuantMode::kPerToken};
  const SiluMulInput silu{.x = norm.x, .quant = {QuantMode::kPerGroup}};
  const RowOpResult norm_result = runner_.NormQuant(norm);
  const RowOpResult silu_result = runner_.SiluMulQuant(silu);
  for (int repeat = 0; repeat < 100; ++repeat) {
    ASSERT_EQ(runner_.NormQuant(norm), norm_result);
    ASSERT_EQ(runner_.SiluMulQuant(silu), silu_result);
  }
  for (const int64_t row : {0, 31, 66}) {
    NormInput one = norm;
    one.x = norm.x.Rows(row, 1);
    EXPECT_EQ(runner_.NormQuant(one).y, norm_result.y.Rows(row, 1)) << row;
    EXPECT_EQ(runner_.SiluMulQuant({.x = one.x, .quant = silu.quant}).y, silu_result.y.Rows(row, 1))
        << row;
  }
}

// However many rows there are and however they lie in memory.
TEST_P(RowOpsTest, ARowHasTheSameBitsInEveryBatch) {
  for (const int64_t d : {1000, 4096, 5000}) {
    SCOPED_TRACE(d);
    NormInput norm;
    norm.x = RandomActivations(DType::kBF16, 600, d, 7);
    norm.residual = RandomActivations(DType::kBF16, 600, d, 8);
    norm.gamma = RandomActivations(DType::kBF16, 1, d, 9);
    norm.quant = {QuantMode::kPerToken};
    const RowOpResult batch = runner_.NormQuant(norm);
    for (const int64_t row : {0, 599}) {
      NormInput one = norm;
      one.x = norm.x.Rows(row, 1);
      one.residual = norm.residual.Rows(row, 1);
      for (const int64_t padding : {0, 3}) {
        runner_.set_row_padding(padding);
        const RowOpResult alone = runner_.NormQuant(one);
        EXPECT_EQ(alone.y, batch.y.Rows(row, 1)) << row << ", padded by " << padding;
        EXPECT_EQ(alone.scales, batch.scales.Rows(row, 1)) << row << ", padded by " << padding;
      }
      runner_.set_row_padding(0);
    }
  }
}

// Squares that underflow to a sum of 0 leave infinities, which no column past the end may turn into
// NaN.
TEST_P(RowOpsTest, TinyRowsWithoutEpsilonBecomeInfinite) {
  for (const int64_t d : {5, 8, 300, 1031, 5000}) {
    SCOPED_TRACE(d);
    NormInput input;
    input.x = HostMatrix(DType::kBF16, 1, d);
    input.gamma = HostMatrix(DType::kBF16, 1, d);
    for (int64_t col = 0; col < d; ++col) {
      input.x.Set(0, col, 0x1p-100f);
      input.gamma.Set(0, col, 1.0f);
    }
    input.epsilon = 0.0f;
    input.quant = {QuantMode::kPerToken};
    const RowOpResult result = runner_.NormQuant(input);
    EXPECT_EQ(result.scales.At(0, 0), std::numeric_limits<float>::infinity());
  }
}

TEST_P(RowOpsTest, TakeMoreThan65535Rows) {
  constexpr int64_t kRows = 65537;
  const HostMatrix x = RandomActivations(DType::kBF16, kRows, 4, 5);
  const HostMatrix v = runner_.SiluMulQuant({.x = x}).y;
  ExpectSilu(x, v);
  const OutputQuant quant{QuantMode::kPerToken};
  ExpectQuantizationOf(v, quant, DType::kF8E4M3, runner_.SiluMulQuant({.x = x, .quant = quant}));
  NormInput norm;
  norm.x = x;
  norm.gamma = RandomActivations(DType::kBF16, 1, 4, 6);
  const HostMatrix y = runner_.NormQuant(norm).y;
  for (const int64_t row : {int64_t{0}, int64_t{65535}, int64_t{65536}}) {
    ExpectNormRow(norm, x, y, row);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RowOpsTest, ::testing::ValuesIn(AllBackends()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace nibble::conformance
