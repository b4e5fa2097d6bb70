// Which requests may share a batch: the keys of the operations.
#include "server/executor/operations.h"

#include <gtest/gtest.h>

#include <set>

#include "nibble/quantize.h"
#include "tests/unit/executor/fixture.h"

namespace nibble::server {
namespace {

using ::nibble::testing::TestDevice;

class OperationsTest : public ::testing::Test {
 protected:
  OperationsTest() : device_(false), store_({&device_}, nullptr) {}

  WeightHandle Add(const std::string& name, int64_t n, int64_t k, Format format) {
    const std::vector<float> values(static_cast<size_t>(n * k), 0.5f);
    WeightSpec target;
    target.format = format;
    target.n = n;
    target.k = k;
    const CanonicalWeight weight =
        Quantize(MakeConstView(values.data(), DType::kF32, n, k), target).value();
    auto transaction = store_.Begin(name, {{name, weight.spec}}, "").value();
    EXPECT_TRUE(transaction->Add(name, weight).ok());
    EXPECT_TRUE(transaction->Commit().ok());
    return store_.Acquire(name).value();
  }

  TestDevice device_;
  WeightStore store_;
};

TEST_F(OperationsTest, EqualMatmulsShareABatch) {
  const WeightHandle weight = Add("a", 4, 8, Format::kNF4);
  EXPECT_EQ(MakeMatmul(weight, {}).key, MakeMatmul(weight, {}).key);
}

TEST_F(OperationsTest, EverythingThatMattersKeepsMatmulsApart) {
  const WeightHandle a = Add("a", 4, 8, Format::kFP8);
  const WeightHandle b = Add("b", 4, 8, Format::kFP8);
  const std::vector<KeyedOperation> all = {
      MakeMatmul(a, {}),
      MakeMatmul(b, {}),
      MakeMatmul(Add("a", 4, 8, Format::kFP8), {}),
      MakeMatmul(a, {.x = DType::kF16}),
      MakeMatmul(a, {.y = DType::kF32}),
      MakeMatmul(a, {.activation = QuantMode::kPerToken}),
      MakeMatmul(a, {.activation = QuantMode::kPerGroup}),
      MakeMatmul(a, {.x = DType::kF8E4M3, .x_scales = QuantMode::kPerToken}),
      MakeMatmul(a, {.x = DType::kF8E4M3, .x_scales = QuantMode::kPerGroup}),
      MakeDequantize(a, 0, DType::kBF16),
      MakeDequantize(a, 0, DType::kBF16),
  };
  std::set<std::array<uint64_t, 4>> keys;
  for (const KeyedOperation& operation : all) keys.insert(operation.key.parts);
  EXPECT_EQ(keys.size(), all.size());
}

TEST_F(OperationsTest, NormsShareABatchOnAResidentGammaAlone) {
  const WeightHandle gamma = Add("g", 1, 8, Format::kDense);
  NormQuantOptions options;
  options.d = 8;
  EXPECT_EQ(MakeNormQuant(gamma, options).key, MakeNormQuant(gamma, options).key);
  EXPECT_NE(MakeNormQuant(std::string(16, '\0'), DType::kBF16, options).key,
            MakeNormQuant(std::string(16, '\0'), DType::kBF16, options).key);
  std::set<std::array<uint64_t, 4>> keys;
  keys.insert(MakeNormQuant(gamma, options).key.parts);
  NormQuantOptions other = options;
  other.epsilon = 1e-5f;
  keys.insert(MakeNormQuant(gamma, other).key.parts);
  other = options;
  other.has_residual = true;
  keys.insert(MakeNormQuant(gamma, other).key.parts);
  other = options;
  other.quant = {QuantMode::kStatic, 0.5f};
  keys.insert(MakeNormQuant(gamma, other).key.parts);
  other.quant.static_scale = 0.25f;
  keys.insert(MakeNormQuant(gamma, other).key.parts);
  other = options;
  other.y = DType::kI8;
  keys.insert(MakeNormQuant(gamma, other).key.parts);
  EXPECT_EQ(keys.size(), 6u);
}

TEST_F(OperationsTest, SiluIsKeyedByItsColumns) {
  SiluMulQuantOptions options;
  options.d = 8;
  SiluMulQuantOptions wider = options;
  wider.d = 16;
  EXPECT_EQ(MakeSiluMulQuant(options).key, MakeSiluMulQuant(options).key);
  EXPECT_NE(MakeSiluMulQuant(options).key, MakeSiluMulQuant(wider).key);
}

TEST_F(OperationsTest, RowBytesFollowTheTypes) {
  const WeightHandle weight = Add("a", 3, 200, Format::kFP8);
  const auto operation =
      MakeMatmul(weight, {.x = DType::kF8E4M3, .y = DType::kF32, .x_scales = QuantMode::kPerGroup})
          .operation;
  EXPECT_EQ(operation->input_row_bytes(), (std::vector<int64_t>{200, 8}));
  EXPECT_EQ(operation->output_row_bytes(), (std::vector<int64_t>{12}));
  SiluMulQuantOptions silu;
  silu.d = 130;
  silu.quant.mode = QuantMode::kPerGroup;
  EXPECT_EQ(MakeSiluMulQuant(silu).operation->output_row_bytes(), (std::vector<int64_t>{130, 8}));
}

}  // namespace
}  // namespace nibble::server
