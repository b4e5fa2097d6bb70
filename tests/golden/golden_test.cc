// Every golden checkpoint, opened, decoded and compared bit for bit with the library that wrote it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "nibble/numeric.h"
#include "nibble/weight.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/safetensors.h"
#include "tests/support/tolerance.h"

namespace nibble::checkpoint {
namespace {

namespace fs = std::filesystem;

fs::path Root() { return fs::path(NIBBLE_SOURCE_DIR) / "tests" / "golden"; }

std::vector<std::string> Directories() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Root())) {
    if (fs::exists(entry.path() / "expected.safetensors"))
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

DType ParseDType(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  ADD_FAILURE() << "dtype " << name;
  return DType::kF32;
}

double DoubleAt(const TensorEntry& entry, int64_t index) {
  double value = 0;
  std::memcpy(&value, entry.data.data() + 8 * index, 8);
  return value;
}

uint32_t WordAt(const void* data, DType dtype, int64_t index) {
  uint32_t word = 0;
  const auto bytes = static_cast<int64_t>(DTypeBytes(dtype));
  std::memcpy(&word, static_cast<const std::byte*>(data) + bytes * index,
              static_cast<size_t>(bytes));
  return word;
}

class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const fs::path directory = Root() / GetParam();
    auto opened = Checkpoint::Open(directory.string());
    ASSERT_TRUE(opened.ok()) << opened.status();
    auto expected = SafetensorsFile::Open((directory / "expected.safetensors").string());
    ASSERT_TRUE(expected.ok()) << expected.status();
    checkpoint_ = *std::move(opened);
    expected_ = *std::move(expected);
    ASSERT_EQ(checkpoint_->layers().size(), 1u);
    auto loaded = checkpoint_->Load(0);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    weight_ = *std::move(loaded);
    decoded_.resize(static_cast<size_t>(weight_.spec.n * weight_.spec.k));
    const Status status = DecodeReference(weight_, 0, weight_.spec.n, decoded_);
    ASSERT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  SafetensorsFile expected_;
  CanonicalWeight weight_;
  std::vector<float> decoded_;  // [N, K]
};

TEST_P(GoldenTest, LayerIsDescribedExactly) {
  const Layer& layer = checkpoint_->layers()[0];
  EXPECT_EQ(layer.name, "model.layers.0.mlp.down_proj");
  EXPECT_EQ(layer.spec, weight_.spec);
  const CanonicalWeight& w = weight_;
  EXPECT_EQ(static_cast<size_t>(layer.bytes),
            w.codes.size() + w.scales.size() + w.nested_scales.size() + w.nested_map.size() +
                w.zero_points.size() + w.group_index.size() + w.bias.size());
  EXPECT_TRUE(checkpoint_->notices().empty()) << checkpoint_->notices()[0];
}

TEST_P(GoldenTest, WeightIsDecodedBitForBit) {
  const TensorEntry* expected = expected_.Find("weight");
  ASSERT_NE(expected, nullptr);
  ASSERT_EQ(expected->shape, (std::vector<int64_t>{weight_.spec.n, weight_.spec.k}));
  const DType dtype = ParseDType(expected->dtype);
  int64_t wrong = 0;
  std::string first;
  for (int64_t i = 0; i < expected->elements(); ++i) {
    uint32_t received = 0;
    StoreFromFloat(&received, dtype, 0, decoded_[static_cast<size_t>(i)]);
    const uint32_t wanted = WordAt(expected->data.data(), dtype, i);
    if (received == wanted) continue;
    if (wrong++ == 0) {
      first = fmt::format("[{}, {}]: expected {:#x}, received {:#x}", i / weight_.spec.k,
                          i % weight_.spec.k, wanted, received);
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << expected->elements() << ", first " << first;
}

TEST_P(GoldenTest, ProductMatches) {
  const TensorEntry* weight = expected_.Find("weight");
  const TensorEntry* x = expected_.Find("x");
  const TensorEntry* y = expected_.Find("y");
  ASSERT_TRUE(weight != nullptr && x != nullptr && y != nullptr);
  const int64_t n = weight_.spec.n;
  const int64_t k = weight_.spec.k;
  ASSERT_EQ(x->shape, (std::vector<int64_t>{5, k}));
  ASSERT_EQ(y->shape, (std::vector<int64_t>{5, n}));
  ASSERT_EQ(x->dtype, "BF16");
  ASSERT_EQ(y->dtype, "F64");
  const DType dtype = ParseDType(weight->dtype);
  testing::ComparisonReport report;
  for (int64_t m = 0; m < 5; ++m) {
    for (int64_t row = 0; row < n; ++row) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t col = 0; col < k; ++col) {
        const double w = RoundTo(dtype, decoded_[static_cast<size_t>(row * k + col)]);
        const double term = w * LoadAsFloat(x->data.data(), DType::kBF16, m * k + col);
        sum += term;
        magnitude += std::fabs(term);
      }
      if (weight_.spec.has_bias) {
        const double bias = LoadAsFloat(weight_.bias.data(), weight_.spec.bias_dtype, row);
        sum += bias;
        magnitude += std::fabs(bias);
      }
      // Both sides sum K + 1 terms in binary64, in orders of their own.
      const double bound = 2.0 * static_cast<double>(k + 1) * 0x1p-53 * magnitude + 0x1p-1000;
      const double wanted = DoubleAt(*y, m * n + row);
      report.Add(m, row, wanted, sum, bound, std::fabs(wanted - sum) / bound);
    }
  }
  EXPECT_TRUE(report.ok()) << report.ToString();
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenTest, ::testing::ValuesIn(Directories()),
                         [](const auto& golden) { return golden.param; });

TEST(GoldenListTest, EveryDialectIsThere) {
  const std::vector<std::string> names = Directories();
  for (std::string_view prefix : {"bnb_", "gptq_", "awq_", "ct_", "fp8_"}) {
    EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.starts_with(prefix);
    })) << prefix;
  }
}

}  // namespace
}  // namespace nibble::checkpoint
