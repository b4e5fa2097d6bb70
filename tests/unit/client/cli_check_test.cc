// The commands that compare: what passes, what fails, and what is said of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/cpp/cli/check.h"
#include "client/cpp/cli/quant_check.h"
#include "tests/unit/client/cli_fixture.h"

namespace nibble {
namespace {

using testing::CliTest;
using ::testing::HasSubstr;
using testing::MakeWeight;
using testing::Outcome;

class CliCheckTest : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    const testing::FakeWeight w = MakeWeight(7, 8);
    x_ = Values(3 * 8);
    for (float& value : x_) value = client::RoundTo(v1::DTYPE_BF16, value);
    std::vector<float> y;
    for (size_t row = 0; row < 3; ++row) {
      for (size_t out = 0; out < 7; ++out) {
        double sum = 0.0;
        for (size_t i = 0; i < 8; ++i)
          sum += static_cast<double>(x_[row * 8 + i]) * w.values[out * 8 + i];
        y.push_back(static_cast<float>(sum));
      }
    }
    in_ = WriteTensor("in", "x", x_, {3, 8}, v1::DTYPE_BF16);
    expected_ = WriteTensor("expected", "y", y, {3, 7}, v1::DTYPE_F32);
    weight_ = WriteTensor("weight", "weight", w.values, {7, 8}, v1::DTYPE_BF16);
  }

  std::vector<float> x_;
  std::string in_;
  std::string expected_;
  std::string weight_;
};

TEST_F(CliCheckTest, MatmulWritesAndComparesY) {
  const Outcome outcome = Run({"matmul", "w", "--in", in_, "--out", Path("out"), "--output-dtype",
                               "f16", "--expect", expected_, "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const cli::Json json = outcome.json();
  EXPECT_EQ(json["check"]["ok"], true);
  EXPECT_EQ(json["check"]["compared"], 21);
  EXPECT_EQ(json["info"]["kernel"], "fake_gemm");
  EXPECT_EQ(json["dtype"], "F16");
  EXPECT_EQ(cli::ReadTensor(Path("out"), "y").value().shape(1), 7);
}

TEST_F(CliCheckTest, MatmulOverAStreamIsTheSame) {
  const Outcome outcome =
      Run({"matmul", "w", "--stream", "--in", in_, "--expect", expected_, "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json()["check"]["compared"], 21);
  EXPECT_EQ(server_.calls("MatmulStream"), 1);
  EXPECT_EQ(server_.calls("Matmul"), 0);
  const Outcome unknown = Run({"matmul", "none", "--stream", "--in", in_});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("nibble: NOT_FOUND: "));
}

TEST_F(CliCheckTest, RowsRepeatTogetherWithWhatIsExpected) {
  const Outcome outcome = Run({"matmul", "w", "--in", in_, "--rows", "50", "--expect", expected_,
                               "--weight-file", weight_, "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json()["shape"], (cli::Json{50, 7}));
  EXPECT_EQ(outcome.json()["check"]["compared"], 350);
  EXPECT_EQ(server_.calls("Dequantize"), 0);
  EXPECT_EQ(Run({"matmul", "w", "--in", in_, "--rows", "0"}).code, 0);
  EXPECT_THAT(Run({"matmul", "w", "--in", in_, "--rows", "999999999999"}).err, HasSubstr("--rows"));
}

TEST_F(CliCheckTest, AWrongElementIsNamed) {
  server_.CorruptMatmul(0.25f);
  const Outcome outcome = Run({"matmul", "w", "--in", in_, "--expect", expected_});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("nibble: MISMATCH: y: 1 of 21 elements out of tolerance; "
                                     "worst: row 0, column 0, expected"));
  EXPECT_THAT(outcome.err, HasSubstr("tolerance"));
}

TEST_F(CliCheckTest, QuantizedActivationsMoveWhatIsExpected) {
  // The fake ignores the flag and multiplies x as it is, which differs from the product of E4M3
  // codes.
  for (const char* mode : {"per-token", "per-group", "static"}) {
    EXPECT_EQ(
        Run({"matmul", "w", "--in", in_, "--expect", expected_, "--activation-quant", mode}).code,
        1)
        << mode;
  }
}

TEST_F(CliCheckTest, DequantComparesBitForBit) {
  const Outcome same = Run({"dequant", "w", "--expect", weight_, "--out", Path("out")});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("all 56 elements equal bit for bit"));
  EXPECT_EQ(cli::ReadTensor(Path("out"), "weight").value().data(),
            cli::ReadTensor(weight_, "weight").value().data());
  EXPECT_EQ(Run({"dequant", "w", "--rows", "2:5", "--expect", weight_, "--json"})
                .json()["check"]["compared"],
            24);
  EXPECT_EQ(Run({"dequant", "w", "--rows", "5:", "--json"}).json()["shape"], (cli::Json{2, 8}));

  std::vector<float> values = MakeWeight(7, 8).values;
  values[5 * 8 + 1] = 2.0f;
  const std::string other = WriteTensor("other", "weight", values, {7, 8}, v1::DTYPE_BF16);
  const Outcome different = Run({"dequant", "w", "--expect", other});
  EXPECT_EQ(different.code, 1);
  EXPECT_THAT(different.err,
              HasSubstr("1 of 56 elements differ; first: row 5, column 1, expected 2 (0x4000)"));
  EXPECT_EQ(Run({"dequant", "w", "--dtype", "f32", "--expect", weight_}).code, 1);
}

TEST_F(CliCheckTest, SignedZerosAreEqualOnlyOnRequest) {
  testing::FakeWeight weight{1, 2, v1::DTYPE_BF16, {0.0f, -0.0f}};
  server_.AddWeight("zero", weight);
  const std::string file = WriteTensor("zero", "weight", {-0.0f, 0.0f}, {1, 2}, v1::DTYPE_BF16);
  EXPECT_EQ(Run({"dequant", "zero", "--expect", file}).code, 1);
  EXPECT_EQ(Run({"dequant", "zero", "--expect", file, "--allow-signed-zero"}).code, 0);
}

TEST_F(CliCheckTest, NormQuantAgreesInEveryMode) {
  const auto tensor = [](const std::vector<float>& values, std::initializer_list<int64_t> shape,
                         v1::DType dtype) {
    return client::TensorFromFloats(values, shape, dtype).value();
  };
  for (const v1::DType dtype : {v1::DTYPE_BF16, v1::DTYPE_F16, v1::DTYPE_F32}) {
    const v1::Tensor x = tensor(Values(5 * 200, 3.0f), {5, 200}, dtype);
    const v1::Tensor residual = tensor(Values(5 * 200, 0.5f), {5, 200}, dtype);
    const v1::Tensor gamma = tensor(Values(200, 2.0f), {200}, v1::DTYPE_F32);
    const std::string file = Path("norm");
    ASSERT_TRUE(cli::WriteTensors(file, {{"x", x}, {"residual", residual}, {"gamma", gamma}}).ok());
    testing::FakeWeight vector{1, 200, v1::DTYPE_F32, Values(200, 2.0f)};
    server_.AddWeight("gamma", vector);
    for (const char* mode : {"none", "per-token", "per-group", "static"}) {
      for (const char* code : {"f8_e4m3", "i8"}) {
        std::vector<std::string> arguments = {
            "norm-quant", "--in",    file, "--residual-tensor", "residual", "--quant",
            mode,         "--dtype", code, "--check",           "--json",   "--rows",
            "9"};
        if (std::string(mode) == "static") {
          arguments.insert(arguments.end(), {"--static-scale", "0.02"});
        }
        std::vector<std::string> by_name = arguments;
        arguments.insert(arguments.end(), {"--gamma-tensor", "gamma"});
        by_name.insert(by_name.end(), {"--gamma-weight", "gamma"});
        const Outcome outcome = Run(arguments);
        EXPECT_EQ(outcome.code, 0) << mode << " " << code << ": " << outcome.err << outcome.out;
        EXPECT_EQ(outcome.json()["check"]["compared"], 1800);
        EXPECT_EQ(Run(by_name).code, 0);
      }
    }
  }
}

TEST_F(CliCheckTest, SiluMulQuantAgreesInEveryMode) {
  for (const v1::DType dtype : {v1::DTYPE_BF16, v1::DTYPE_F16, v1::DTYPE_F32}) {
    const std::string file = WriteTensor("silu", "x", Values(4 * 600, 6.0f), {4, 600}, dtype);
    for (const char* mode : {"none", "per-token", "per-group"}) {
      const Outcome outcome = Run({"silu-mul-quant", "--in", file, "--quant", mode, "--check",
                                   "--out", Path("out"), "--json"});
      EXPECT_EQ(outcome.code, 0) << mode << ": " << outcome.err << outcome.out;
      EXPECT_EQ(outcome.json()["check"]["compared"], 1200);
    }
    EXPECT_EQ(cli::ReadTensor(Path("out"), "scales").value().shape(1), 3);
  }
}

// A reference of one row, and the answer that agrees with it.
struct QuantCase {
  cli::Rounded v{2, 4, v1::DTYPE_BF16, {1.0f, -0.5f, 0.25f, 2.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
  v1::OutputQuant quant;
  v1::Tensor y;
  v1::Tensor scales;

  explicit QuantCase(float scale = 2.0f / 127.0f) {
    quant.set_mode(v1::QUANT_MODE_PER_TOKEN);
    quant.set_dtype(v1::DTYPE_I8);
    std::vector<float> codes;
    for (size_t i = 0; i < v.values.size(); ++i)
      codes.push_back(i < 4 ? v.values[i] / scale : 0.0f);
    y = client::TensorFromFloats(codes, {2, 4}, v1::DTYPE_I8).value();
    scales = client::TensorFromFloats(std::vector<float>{scale, 0x1p-100f}, {2, 1}, v1::DTYPE_F32)
                 .value();
  }
  cli::QuantReport Check() const { return cli::CheckQuantized(v, quant, y, scales).value(); }
};

TEST(QuantCheckTest, OneStepIsAllowedAndTwoAreNot) {
  QuantCase test;
  EXPECT_TRUE(test.Check().ok()) << test.Check().Text();
  test.y.mutable_data()->at(3) = 126;
  EXPECT_TRUE(test.Check().ok());
  EXPECT_EQ(test.Check().one_step, 1);
  test.y.mutable_data()->at(2) = static_cast<char>(test.y.data()[2] + 1);
  EXPECT_FALSE(test.Check().ok());  // two of them among eight
  test = QuantCase();
  test.y.mutable_data()->at(3) = 125;
  EXPECT_FALSE(test.Check().ok());
  EXPECT_THAT(test.Check().Text(),
              HasSubstr("first wrong: row 0, column 3: expected 127, received 125"));
}

TEST(QuantCheckTest, AWrongScaleFails) {
  EXPECT_TRUE(QuantCase(2.0f / 127.0f * (1.0f + 2e-7f)).Check().ok());
  const QuantCase neighbour((2.0f + 0x1p-6f) / 127.0f);  // what the next BF16 gives
  EXPECT_TRUE(neighbour.Check().ok()) << neighbour.Check().Text();
  EXPECT_EQ(neighbour.Check().scales_one_step, 1);
  QuantCase wrong(2.0f / 126.0f);
  EXPECT_FALSE(wrong.Check().ok());
  EXPECT_EQ(wrong.Check().scales_wrong, 1);
  wrong.scales.Clear();
  EXPECT_FALSE(cli::CheckQuantized(wrong.v, wrong.quant, wrong.y, wrong.scales).ok());
}

TEST(QuantCheckTest, ScalesWhereThereAreNoneToBeAreAnError) {
  QuantCase test;
  test.quant.set_mode(v1::QUANT_MODE_STATIC);
  test.quant.set_static_scale(2.0f / 127.0f);
  EXPECT_FALSE(cli::CheckQuantized(test.v, test.quant, test.y, test.scales).ok());
  EXPECT_TRUE(cli::CheckQuantized(test.v, test.quant, test.y, {}).value().ok());
}

TEST(QuantCheckTest, UnquantizedValuesMayLieTwoStepsBeside) {
  const cli::Rounded v{1, 2, v1::DTYPE_F16, {1.0f, -4.0f}};
  const auto passes = [&](float first) {
    const v1::Tensor y =
        client::TensorFromFloats(std::vector<float>{first, -4.0f}, {1, 2}, v1::DTYPE_F16).value();
    return cli::CheckQuantized(v, {}, y, {}).value().ok();
  };
  EXPECT_TRUE(passes(1.0f));
  EXPECT_TRUE(passes(1.0f + 0x2p-10f));
  EXPECT_FALSE(passes(1.0f + 0x3p-10f));
}

TEST(QuantCheckTest, NaNIsNotANeighbourOfTheLargestCode) {
  const cli::Rounded v{1, 1, v1::DTYPE_F32, {448.0f}};
  v1::OutputQuant quant;
  quant.set_mode(v1::QUANT_MODE_STATIC);
  quant.set_static_scale(1.0f);
  v1::Tensor y =
      client::TensorFromFloats(std::vector<float>{448.0f}, {1, 1}, v1::DTYPE_F8_E4M3).value();
  EXPECT_TRUE(cli::CheckQuantized(v, quant, y, {}).value().ok());
  y.set_data("\x7F");
  EXPECT_FALSE(cli::CheckQuantized(v, quant, y, {}).value().ok());
}

TEST(QuantCheckTest, RowsThatAreNotFiniteAreCountedAndNothingComparedIsNoSuccess) {
  QuantCase test;
  test.v.values[0] = std::nanf("");
  EXPECT_EQ(test.Check().rows_left_out, 1);
  EXPECT_EQ(test.Check().compared, 4);
  test.v.values[4] = INFINITY;
  EXPECT_FALSE(test.Check().ok());
}

class MatmulCheckTest : public ::testing::Test {
 protected:
  // One element y = expected of a row x = (1, 1) and a weight row (1, 1).
  static bool Passes(double expected, float y, v1::DType dtype) {
    const cli::Matrix x{1, 2, {1.0, 1.0}};
    const v1::Tensor tensor =
        client::TensorFromFloats(std::vector<float>{y}, {1, 1}, dtype).value();
    cli::MatmulCheck check = cli::MatmulCheck::Create(x, x, tensor, {1, 1, {expected}}).value();
    EXPECT_FALSE(check.ok());  // nothing compared yet
    const std::vector<float> w = {1.0f, 1.0f};
    EXPECT_TRUE(check.AddWeightRow(0, w).ok());
    return check.ok();
  }
};

TEST_F(MatmulCheckTest, TheToleranceIsDerivedFromNormsAndType) {
  // ||x|| ||w|| = 2: 2^-8 * 2 for the weights, 2^-24 * 2 for the output.
  EXPECT_TRUE(Passes(2.0, 2.0f, v1::DTYPE_F32));
  EXPECT_TRUE(Passes(2.0, 2.0f + 0x1p-7f, v1::DTYPE_F32));
  EXPECT_FALSE(Passes(2.0, 2.0f + 0x1.02p-7f, v1::DTYPE_F32));
  // BF16 adds half a unit in its last place.
  EXPECT_TRUE(Passes(2.0078125, 2.015625f, v1::DTYPE_BF16));
  EXPECT_TRUE(Passes(2.0, 2.0f + 0x1p-6f, v1::DTYPE_BF16));
  EXPECT_FALSE(Passes(2.0, 2.0f + 0x1p-5f, v1::DTYPE_BF16));
}

TEST_F(MatmulCheckTest, AWeightThatBF16RoundsByHalfAUnitPasses) {
  const cli::Matrix x{1, 1, {1.0}};
  const std::vector<float> w = {1.0f + 0x1p-8f};  // a tie, to even: 1
  const float rounded = client::RoundTo(v1::DTYPE_BF16, w[0]);
  ASSERT_EQ(rounded, 1.0f);
  const v1::Tensor y =
      client::TensorFromFloats(std::vector<float>{rounded}, {1, 1}, v1::DTYPE_F32).value();
  cli::MatmulCheck check = cli::MatmulCheck::Create(x, x, y, {1, 1, {w[0]}}).value();
  ASSERT_TRUE(check.AddWeightRow(0, w).ok());
  EXPECT_TRUE(check.ok()) << check.Text();
}

TEST_F(MatmulCheckTest, NaNAndInfinityMeetTheirLike) {
  const float nan = std::nanf("");
  EXPECT_TRUE(Passes(nan, nan, v1::DTYPE_F32));
  EXPECT_FALSE(Passes(1.0, nan, v1::DTYPE_F32));
  EXPECT_FALSE(Passes(nan, 1.0f, v1::DTYPE_F32));
  EXPECT_TRUE(Passes(INFINITY, INFINITY, v1::DTYPE_F32));
  EXPECT_FALSE(Passes(INFINITY, -INFINITY, v1::DTYPE_F32));
  EXPECT_FALSE(Passes(1000.0, INFINITY, v1::DTYPE_F16));
  EXPECT_TRUE(Passes(70000.0, INFINITY, v1::DTYPE_F16));
  EXPECT_FALSE(Passes(70000.0, -INFINITY, v1::DTYPE_F16));
}

TEST_F(MatmulCheckTest, QuantizedActivationsMoveWhatIsExpected) {
  // 1.0625 lies between the E4M3 values 1 and 1.125 and becomes 1; 448 keeps the scale at 1.
  cli::Matrix x{1, 2, {448.0, 1.0625}};
  cli::Matrix used = cli::QuantizedActivations(x, v1::QUANT_MODE_PER_TOKEN, 0.0f);
  EXPECT_EQ(used.values, (std::vector<double>{448.0, 1.0}));
  // Without the large value the tolerance is far below what the rounding moved.
  x.values[0] = 0.0;
  used.values[0] = 0.0;
  const v1::Tensor y =
      client::TensorFromFloats(std::vector<float>{100.0f}, {1, 1}, v1::DTYPE_F32).value();
  const cli::Matrix expected{1, 1, {100.0625}};  // x W^T and a bias of 99
  const auto passes = [&](const cli::Matrix& product_sees) {
    cli::MatmulCheck check = cli::MatmulCheck::Create(x, product_sees, y, expected).value();
    const std::vector<float> w = {0.0f, 1.0f};
    EXPECT_TRUE(check.AddWeightRow(0, w).ok());
    return check.ok();
  };
  EXPECT_TRUE(passes(used));
  EXPECT_FALSE(passes(x));
}

TEST_F(MatmulCheckTest, ShapesThatDoNotFitAreErrors) {
  const cli::Matrix x{1, 2, {1.0, 1.0}};
  const v1::Tensor y =
      client::TensorFromFloats(std::vector<float>{1}, {1, 1}, v1::DTYPE_F32).value();
  EXPECT_FALSE(cli::MatmulCheck::Create(x, x, y, {1, 2, {1.0, 1.0}}).ok());
  EXPECT_FALSE(cli::MatmulCheck::Create(x, x, y, {0, 1, {}}).ok());
  cli::MatmulCheck check = cli::MatmulCheck::Create(x, x, y, {1, 1, {2.0}}).value();
  const std::vector<float> w = {1.0f, 1.0f, 1.0f};
  EXPECT_FALSE(check.AddWeightRow(0, w).ok());
  EXPECT_FALSE(check.AddWeightRow(1, std::span(w).first(2)).ok());
}

}  // namespace
}  // namespace nibble
