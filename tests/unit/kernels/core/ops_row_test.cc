#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nibble/ops.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 3;
constexpr int64_t kD = 300;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void ExpectInvalid(const Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
  EXPECT_THAT(std::string(MessageOf(status)), HasSubstr(message));
}

class ValidateRowOpTest : public ::testing::Test {
 protected:
  NormQuantArgs Norm() {
    NormQuantArgs args;
    args.x = MakeConstView(x_.data(), DType::kBF16, kRows, kD);
    args.gamma = MakeConstView(gamma_.data(), DType::kF32, 1, kD);
    args.y = MakeView(y_.data(), DType::kBF16, kRows, kD);
    return args;
  }
  NormQuantArgs NormWithResidual() {
    NormQuantArgs args = Norm();
    args.residual = MakeConstView(residual_.data(), DType::kBF16, kRows, kD);
    args.residual_out = MakeView(residual_out_.data(), DType::kBF16, kRows, kD);
    return args;
  }
  SiluMulQuantArgs Silu() {
    SiluMulQuantArgs args;
    args.x = MakeConstView(x_.data(), DType::kF16, kRows, 2 * kD);
    args.y = MakeView(y_.data(), DType::kF16, kRows, kD);
    return args;
  }
  // Quantizes to `dtype` with scales of `cols` columns (none for 0).
  template <typename Args>
  Args Quantized(Args args, QuantMode mode, DType dtype, int64_t cols) {
    args.quant.mode = mode;
    args.y.dtype = dtype;
    if (cols > 0) args.scales = MakeView(scales_.data(), DType::kF32, kRows, cols);
    return args;
  }

  std::vector<float> x_ = std::vector<float>(kRows * 2 * kD);
  std::vector<float> gamma_ = std::vector<float>(kRows * kD);
  std::vector<float> y_ = std::vector<float>(kRows * kD);
  std::vector<float> scales_ = std::vector<float>(kRows * 3);
  std::vector<float> residual_ = std::vector<float>(kRows * kD);
  std::vector<float> residual_out_ = std::vector<float>(kRows * kD);
};

TEST_F(ValidateRowOpTest, AcceptsEveryModeAndType) {
  EXPECT_TRUE(ValidateNormQuant(Norm()).ok());
  EXPECT_TRUE(ValidateNormQuant(NormWithResidual()).ok());
  EXPECT_TRUE(ValidateSiluMulQuant(Silu()).ok());
  for (DType dtype : {DType::kF8E4M3, DType::kI8}) {
    for (const auto& [mode, cols] :
         {std::pair{QuantMode::kPerToken, int64_t{1}}, std::pair{QuantMode::kPerGroup, int64_t{3}},
          std::pair{QuantMode::kStatic, int64_t{0}}}) {
      EXPECT_TRUE(ValidateNormQuant(Quantized(NormWithResidual(), mode, dtype, cols)).ok());
      EXPECT_TRUE(ValidateSiluMulQuant(Quantized(Silu(), mode, dtype, cols)).ok());
    }
  }
}

TEST_F(ValidateRowOpTest, OutputsFollowTheMode) {
  NormQuantArgs args = Norm();
  args.y.dtype = DType::kF32;
  ExpectInvalid(ValidateNormQuant(args), "y.dtype: expected BF16; received F32");
  args = Norm();
  args.scales = MakeView(scales_.data(), DType::kF32, kRows, 1);
  ExpectInvalid(ValidateNormQuant(args), "scales: expected none without quantization");
  args = Quantized(Norm(), QuantMode::kPerToken, DType::kBF16, 1);
  ExpectInvalid(ValidateNormQuant(args),
                "y.dtype: expected F8_E4M3 or I8 with quantization per_token; received BF16");
  args = Quantized(Norm(), QuantMode::kPerGroup, DType::kI8, 1);
  ExpectInvalid(ValidateNormQuant(args), "scales: expected shape [3, 3]; received [3, 1]");
  args = Quantized(Norm(), QuantMode::kPerToken, DType::kI8, 0);
  ExpectInvalid(ValidateNormQuant(args), "scales: expected shape [3, 1]; received [0, 0]");
  args = Quantized(Norm(), QuantMode::kPerToken, DType::kI8, 1);
  args.scales.dtype = DType::kF16;
  ExpectInvalid(ValidateNormQuant(args), "scales.dtype: expected F32; received F16");
  args.scales = {scales_.data(), DType::kF32, kRows, 1, 0};
  ExpectInvalid(ValidateNormQuant(args), "scales.row_stride: expected at least 1; received 0");
  args = Quantized(Norm(), QuantMode::kStatic, DType::kI8, 1);
  ExpectInvalid(ValidateNormQuant(args), "scales: expected none with a static scale");
  for (float bad : {0.0f, -2.0f, kInfinity, kNaN}) {
    args = Quantized(Norm(), QuantMode::kStatic, DType::kI8, 0);
    args.quant.static_scale = bad;
    ExpectInvalid(ValidateNormQuant(args), "quant.static_scale: expected a finite value above 0");
  }
  args = Norm();
  args.quant.mode = static_cast<QuantMode>(5);
  ExpectInvalid(ValidateNormQuant(args), "quant.mode: expected none, per_token, per_group or");
}

TEST_F(ValidateRowOpTest, NormShapesAndValues) {
  NormQuantArgs args = Norm();
  args.x.dtype = DType::kF8E4M3;
  ExpectInvalid(ValidateNormQuant(args), "x.dtype: expected F32, F16 or BF16; received F8_E4M3");
  args = Norm();
  args.x.cols = 0;
  ExpectInvalid(ValidateNormQuant(args), "x: expected at least 0 rows and 1 column");
  args = Norm();
  args.gamma.rows = 2;
  ExpectInvalid(ValidateNormQuant(args), "gamma: expected shape [1, 300]; received [2, 300]");
  args = Norm();
  args.gamma = {};
  ExpectInvalid(ValidateNormQuant(args), "gamma: expected shape [1, 300]; received [0, 0]");
  args = Norm();
  args.gamma.dtype = DType::kI8;
  ExpectInvalid(ValidateNormQuant(args), "gamma.dtype: expected F32, F16 or BF16; received I8");
  args = Norm();
  args.y.cols = 299;
  ExpectInvalid(ValidateNormQuant(args), "y: expected shape [3, 300]; received [3, 299]");
  for (float bad : {-1e-6f, kInfinity, kNaN}) {
    args = Norm();
    args.epsilon = bad;
    ExpectInvalid(ValidateNormQuant(args), "epsilon: expected a finite value of at least 0");
  }
  args = Norm();
  args.epsilon = 0.0f;
  EXPECT_TRUE(ValidateNormQuant(args).ok());
}

TEST_F(ValidateRowOpTest, ResidualAndItsResultComeTogether) {
  NormQuantArgs args = NormWithResidual();
  args.residual_out = {};
  ExpectInvalid(ValidateNormQuant(args), "residual_out.dtype: expected BF16; received F32");
  args.residual_out.dtype = DType::kBF16;
  ExpectInvalid(ValidateNormQuant(args), "residual_out: expected shape [3, 300]; received [0, 0]");
  args = NormWithResidual();
  args.residual = {};
  ExpectInvalid(ValidateNormQuant(args), "residual_out: expected none without a residual");
  args = NormWithResidual();
  args.residual.dtype = DType::kF16;
  ExpectInvalid(ValidateNormQuant(args), "residual.dtype: expected BF16; received F16");
  args = NormWithResidual();
  args.residual.rows = 2;
  ExpectInvalid(ValidateNormQuant(args), "residual: expected shape [3, 300]; received [2, 300]");
}

TEST_F(ValidateRowOpTest, OnlyTheResidualMayBeUpdatedInPlace) {
  NormQuantArgs args = NormWithResidual();
  args.residual_out.data = residual_.data();
  EXPECT_TRUE(ValidateNormQuant(args).ok());
  args.residual_out.data = residual_.data() + 1;
  ExpectInvalid(ValidateNormQuant(args), "residual_out: expected memory apart from residual");
  args.residual_out = {residual_.data(), DType::kBF16, kRows, kD, kD + 2};
  ExpectInvalid(ValidateNormQuant(args), "residual_out: expected memory apart from residual");
  args = NormWithResidual();
  args.residual_out.data = x_.data();
  ExpectInvalid(ValidateNormQuant(args), "residual_out: expected memory apart from x");
  args = Norm();
  args.y.data = x_.data();
  ExpectInvalid(ValidateNormQuant(args), "y: expected memory apart from x");
  args = Norm();
  args.y.data = gamma_.data();
  ExpectInvalid(ValidateNormQuant(args), "y: expected memory apart from gamma");
  args = NormWithResidual();
  args.y.data = residual_out_.data();
  ExpectInvalid(ValidateNormQuant(args), "y: expected memory apart from residual_out");
  args = Quantized(NormWithResidual(), QuantMode::kPerToken, DType::kI8, 1);
  args.scales.data = residual_out_.data();
  ExpectInvalid(ValidateNormQuant(args), "scales: expected memory apart from residual_out");
  args.scales.data = y_.data();
  ExpectInvalid(ValidateNormQuant(args), "y: expected memory apart from scales");
  args.scales.data = x_.data();
  ExpectInvalid(ValidateNormQuant(args), "scales: expected memory apart from x");
}

TEST_F(ValidateRowOpTest, SiluShapesAndMemory) {
  SiluMulQuantArgs args = Silu();
  args.x.cols = 2 * kD - 1;
  ExpectInvalid(ValidateSiluMulQuant(args),
                "x: expected an even number of columns, [gate | up]; received 599");
  args = Silu();
  args.x.cols = 0;
  ExpectInvalid(ValidateSiluMulQuant(args), "x: expected at least 0 rows and 1 column");
  args = Silu();
  args.y.cols = 2 * kD;
  ExpectInvalid(ValidateSiluMulQuant(args), "y: expected shape [3, 300]; received [3, 600]");
  args = Silu();
  args.x.dtype = DType::kI8;
  ExpectInvalid(ValidateSiluMulQuant(args), "x.dtype: expected F32, F16 or BF16; received I8");
  args = Silu();
  args.y.data = x_.data() + 10;
  ExpectInvalid(ValidateSiluMulQuant(args), "y: expected memory apart from x");
  args = Quantized(Silu(), QuantMode::kPerGroup, DType::kF8E4M3, 3);
  args.scales.data = x_.data();
  ExpectInvalid(ValidateSiluMulQuant(args), "scales: expected memory apart from x");
  args.scales.data = y_.data();
  ExpectInvalid(ValidateSiluMulQuant(args), "y: expected memory apart from scales");
}

TEST_F(ValidateRowOpTest, NoRowsNeedNoMemory) {
  NormQuantArgs norm = Norm();
  norm.x = {nullptr, DType::kBF16, 0, kD, kD};
  norm.y = {nullptr, DType::kBF16, 0, kD, kD};
  EXPECT_TRUE(ValidateNormQuant(norm).ok());
  norm.quant.mode = QuantMode::kPerToken;
  norm.y.dtype = DType::kI8;
  EXPECT_TRUE(ValidateNormQuant(norm).ok());
  SiluMulQuantArgs silu;
  silu.x = {nullptr, DType::kBF16, 0, 2 * kD, 2 * kD};
  silu.y = {nullptr, DType::kBF16, 0, kD, kD};
  EXPECT_TRUE(ValidateSiluMulQuant(silu).ok());
}

TEST(Names, OfOpsAndModes) {
  EXPECT_EQ(OpName(Op::kMatmul), "matmul");
  EXPECT_EQ(OpName(Op::kDequantize), "dequantize");
  EXPECT_EQ(OpName(Op::kNormQuant), "norm_quant");
  EXPECT_EQ(OpName(Op::kSiluMulQuant), "silu_mul_quant");
  EXPECT_EQ(QuantModeName(QuantMode::kNone), "none");
  EXPECT_EQ(QuantModeName(QuantMode::kPerToken), "per_token");
  EXPECT_EQ(QuantModeName(QuantMode::kPerGroup), "per_group");
  EXPECT_EQ(QuantModeName(QuantMode::kStatic), "static");
}

TEST(ScalesPerRow, OfEveryMode) {
  EXPECT_EQ(ScalesPerRow(QuantMode::kNone, 300), 0);
  EXPECT_EQ(ScalesPerRow(QuantMode::kPerToken, 300), 1);
  EXPECT_EQ(ScalesPerRow(QuantMode::kStatic, 300), 1);
  for (const auto& [cols, groups] : {std::pair{1, 1}, {127, 1}, {128, 1}, {129, 2}, {300, 3}}) {
    EXPECT_EQ(ScalesPerRow(QuantMode::kPerGroup, cols), groups) << cols;
  }
}

}  // namespace
}  // namespace nibble
