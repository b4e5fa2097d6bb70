#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nibble/ops.h"
#include "tests/unit/kernels/core/fake_weight.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kN = 6;
constexpr int64_t kK = 200;

WeightSpec Spec(Format format) {
  WeightSpec spec;
  spec.format = format;
  spec.n = kN;
  spec.k = kK;
  return spec;
}

class ValidateMatmulTest : public ::testing::Test {
 protected:
  MatmulArgs Args(const DeviceWeight& weight) {
    MatmulArgs args;
    args.weight = &weight;
    args.x = MakeConstView(x_.data(), DType::kF32, 3, kK);
    args.y = MakeView(y_.data(), DType::kF32, 3, kN);
    return args;
  }
  MatmulArgs QuantizedArgs() {
    MatmulArgs args = Args(fp8_);
    args.x.dtype = DType::kF8E4M3;
    args.x_scales = MakeConstView(scales_.data(), DType::kF32, 3, 1);
    args.activation = QuantMode::kPerToken;
    return args;
  }
  static void ExpectOk(const MatmulArgs& args) {
    const Status status = ValidateMatmul(args);
    EXPECT_TRUE(status.ok()) << status;
  }
  static void ExpectInvalid(const MatmulArgs& args, const std::string& message) {
    const Status status = ValidateMatmul(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(MessageOf(status)), HasSubstr(message));
  }

  std::vector<float> x_ = std::vector<float>(4 * kK);
  std::vector<float> y_ = std::vector<float>(4 * kK);
  std::vector<float> scales_ = std::vector<float>(16);
  FakeWeight nf4_{Spec(Format::kNF4)};
  FakeWeight fp8_{Spec(Format::kFP8)};
};

TEST_F(ValidateMatmulTest, AcceptsEveryFloatTypeForEveryFormat) {
  for (Format format : {Format::kDense, Format::kNF4, Format::kFP4, Format::kInt4, Format::kFP8}) {
    const FakeWeight weight{Spec(format)};
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      MatmulArgs args = Args(weight);
      args.x.dtype = dtype;
      ExpectOk(args);
      args.y.dtype = dtype;
      ExpectOk(args);
    }
  }
}

TEST_F(ValidateMatmulTest, NamesTheShapeThatIsWrong) {
  MatmulArgs args = Args(nf4_);
  args.weight = nullptr;
  ExpectInvalid(args, "weight: expected a resident weight; received null");
  args = Args(nf4_);
  args.x.cols = 199;
  ExpectInvalid(args, "x: expected shape [3, 200]; received [3, 199]");
  args = Args(nf4_);
  args.y.cols = 7;
  ExpectInvalid(args, "y: expected shape [3, 6]; received [3, 7]");
  args = Args(nf4_);
  args.y.rows = 2;
  ExpectInvalid(args, "y: expected shape [3, 6]; received [2, 6]");
  args = Args(nf4_);
  args.x.rows = args.y.rows = -1;
  ExpectInvalid(args, "x: expected at least 0 rows and 1 column; received [-1, 200]");
  args = Args(nf4_);
  args.x.data = nullptr;
  ExpectInvalid(args, "x.data: expected memory of shape [3, 200]; received null");
  args = Args(nf4_);
  args.y.data = nullptr;
  ExpectInvalid(args, "y.data: expected memory of shape [3, 6]; received null");
}

TEST_F(ValidateMatmulTest, NamesTheDTypeThatIsWrong) {
  MatmulArgs args = Args(nf4_);
  args.x.dtype = DType::kI8;
  ExpectInvalid(args, "x.dtype: expected F32, F16, BF16 or F8_E4M3; received I8");
  args = Args(nf4_);
  args.y.dtype = DType::kF8E4M3;
  ExpectInvalid(args, "y.dtype: expected F32, F16 or BF16; received F8_E4M3");
  args = QuantizedArgs();
  args.weight = &nf4_;
  ExpectInvalid(args,
                "x.dtype: expected F32, F16 or BF16 for a weight of format nf4; received F8_E4M3");
}

TEST_F(ValidateMatmulTest, StridesAreAtLeastTheColumns) {
  MatmulArgs args = Args(nf4_);
  args.x.row_stride = kK - 1;
  ExpectInvalid(args, "x.row_stride: expected at least 200 or 0; received 199");
  args.x.row_stride = -kK;
  ExpectInvalid(args, "x.row_stride: expected at least 200 or 0; received -200");
  args.x.row_stride = 0;  // one row, repeated
  ExpectOk(args);
  args.x.row_stride = std::numeric_limits<int64_t>::max() / 2;
  ExpectInvalid(args, "x: expected an extent below 2^63 bytes");
  args = Args(nf4_);
  args.y.row_stride = 0;
  ExpectInvalid(args, "y.row_stride: expected at least 6; received 0");
  args.y.row_stride = kN + 1;
  ExpectOk(args);
}

TEST_F(ValidateMatmulTest, NoRowsNeedNoMemory) {
  MatmulArgs args = Args(nf4_);
  args.x = {nullptr, DType::kF32, 0, kK, kK};
  args.y = {nullptr, DType::kF32, 0, kN, kN};
  ExpectOk(args);
  args.x.cols = 3;
  ExpectInvalid(args, "x: expected shape [0, 200]; received [0, 3]");

  args = QuantizedArgs();
  args.x.rows = args.y.rows = 0;
  args.x_scales = {};
  ExpectOk(args);
}

TEST_F(ValidateMatmulTest, OnlyFP8WeightsTakeQuantizedActivations) {
  for (QuantMode mode : {QuantMode::kPerToken, QuantMode::kPerGroup, QuantMode::kStatic}) {
    MatmulArgs args = Args(fp8_);
    args.activation = mode;
    ExpectOk(args);
    args.weight = &nf4_;
    ExpectInvalid(args, "activation: expected none for a weight of format nf4; received " +
                            std::string(QuantModeName(mode)));
  }
  MatmulArgs args = Args(fp8_);
  args.activation = static_cast<QuantMode>(9);
  ExpectInvalid(args, "activation: expected none, per_token, per_group or static; received 9");
}

TEST_F(ValidateMatmulTest, StaticScaleIsFiniteAndAboveZero) {
  MatmulArgs args = Args(fp8_);
  args.activation = QuantMode::kStatic;
  for (float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    args.static_scale = bad;
    ExpectInvalid(args, "static_scale: expected a finite value above 0; received");
  }
  args.activation = QuantMode::kPerToken;
  ExpectOk(args);
}

TEST_F(ValidateMatmulTest, ScalesOfQuantizedActivations) {
  ExpectOk(QuantizedArgs());
  MatmulArgs args = QuantizedArgs();
  args.x_scales.row_stride = 0;
  ExpectOk(args);
  args = QuantizedArgs();
  args.activation = QuantMode::kPerGroup;
  ExpectInvalid(args, "x_scales: expected shape [3, 2]; received [3, 1]");
  args.x_scales = MakeConstView(scales_.data(), DType::kF32, 3, 2);
  ExpectOk(args);
  args.activation = QuantMode::kPerToken;
  ExpectInvalid(args, "x_scales: expected shape [3, 1]; received [3, 2]");
  args = QuantizedArgs();
  args.x_scales.rows = 1;
  ExpectInvalid(args, "x_scales: expected shape [3, 1]; received [1, 1]");
  args = QuantizedArgs();
  args.x_scales.dtype = DType::kF16;
  ExpectInvalid(args, "x_scales.dtype: expected F32; received F16");
  args = QuantizedArgs();
  args.x_scales.data = nullptr;
  ExpectInvalid(args, "x_scales.data: expected memory of shape [3, 1]; received null");
  for (QuantMode mode : {QuantMode::kNone, QuantMode::kStatic}) {
    args = QuantizedArgs();
    args.activation = mode;
    ExpectInvalid(args, "activation: expected per_token or per_group for an F8_E4M3 x; received " +
                            std::string(QuantModeName(mode)));
  }
  args = Args(fp8_);
  args.x_scales = MakeConstView(scales_.data(), DType::kF32, 3, 1);
  ExpectInvalid(args, "x_scales: expected none unless x is F8_E4M3; received [3, 1] F32");
}

TEST_F(ValidateMatmulTest, ResultsShareNoMemoryWithInputs) {
  MatmulArgs args = Args(nf4_);
  args.y.data = x_.data() + 3 * kK - 1;
  ExpectInvalid(args, "y: expected memory apart from x; received overlapping memory");
  args.y.data = x_.data() + 3 * kK;
  ExpectOk(args);
  args = QuantizedArgs();
  args.x_scales.data = y_.data() + 1;
  ExpectInvalid(args, "y: expected memory apart from x_scales; received overlapping memory");
}

TEST_F(ValidateMatmulTest, ColumnRangesOfOneMatrixAreApart) {
  const FakeWeight square{[] {
    WeightSpec spec = Spec(Format::kNF4);
    spec.k = kN;
    return spec;
  }()};
  for (int64_t shift : {int64_t{5}, int64_t{6}, int64_t{10}, int64_t{14}, int64_t{15}}) {
    const bool apart = shift >= kN && shift + kN <= 20;
    MatmulArgs args;
    args.weight = &square;
    args.x = {x_.data(), DType::kF32, 3, kN, 20};
    args.y = {x_.data() + shift, DType::kF32, 3, kN, 20};
    EXPECT_EQ(ValidateMatmul(args).ok(), apart) << shift;
    args.x.data = x_.data() + shift;
    args.y.data = x_.data();
    EXPECT_EQ(ValidateMatmul(args).ok(), apart) << shift;
  }
}

TEST(ValidateDequantize, RowsLieWithinTheWeight) {
  const FakeWeight weight{Spec(Format::kInt4)};
  std::vector<float> out(6 * kK);
  DequantizeArgs args{&weight, 2, MakeView(out.data(), DType::kBF16, 4, kK)};
  EXPECT_TRUE(ValidateDequantize(args).ok());
  const auto message = [&] { return std::string(MessageOf(ValidateDequantize(args))); };
  args.row_begin = 3;
  EXPECT_THAT(message(), HasSubstr("out.rows: expected at most 3 from row_begin 3; received 4"));
  args.row_begin = -1;
  EXPECT_THAT(message(), HasSubstr("row_begin: expected 0 to 6; received -1"));
  args.row_begin = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(message(), HasSubstr("row_begin: expected 0 to 6; received 9223372036854775807"));
  args.row_begin = 6;
  args.out.rows = 0;
  EXPECT_TRUE(ValidateDequantize(args).ok());
  args.row_begin = 0;
  args.out.rows = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(message(), HasSubstr("out.rows: expected at most 6"));
  args.out = MakeView(out.data(), DType::kI8, 1, kK);
  EXPECT_THAT(message(), HasSubstr("out.dtype: expected F32, F16 or BF16; received I8"));
  args.out = MakeView(out.data(), DType::kF32, 1, kK + 1);
  EXPECT_THAT(message(), HasSubstr("out: expected shape [1, 200]; received [1, 201]"));
  args.out = MakeView(nullptr, DType::kF32, 1, kK);
  EXPECT_THAT(message(), HasSubstr("out.data: expected memory"));
  args.weight = nullptr;
  EXPECT_THAT(message(), HasSubstr("weight: expected a resident weight; received null"));
}

}  // namespace
}  // namespace nibble
