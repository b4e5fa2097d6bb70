// The result is the same bits whatever the threads and the instruction set.
#include <algorithm>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "nibble/quantize.h"
#include "tests/unit/kernels/quantize/fixture.h"

namespace nibble {
namespace {

// Of every format, in shapes of many tasks with a ragged end.
std::vector<WeightSpec> Targets() {
  std::vector<WeightSpec> targets;
  for (Format format : {Format::kNF4, Format::kFP4}) {
    for (int64_t block_size : {32, 4096}) {
      WeightSpec spec;
      spec.format = format;
      spec.block_size = block_size;
      spec.nested = block_size == 32;
      targets.push_back(spec);
    }
  }
  for (bool zero_points : {false, true}) {
    for (int64_t group_size : {7, 128}) {
      WeightSpec spec;
      spec.format = Format::kInt4;
      spec.group_size = group_size;
      spec.has_zero_points = zero_points;
      targets.push_back(spec);
    }
  }
  for (ScaleLayout layout : {ScaleLayout::kTensor, ScaleLayout::kChannel, ScaleLayout::kBlock}) {
    WeightSpec spec;
    spec.format = Format::kFP8;
    spec.scale_layout = layout;
    spec.scale_dtype = DType::kBF16;
    targets.push_back(spec);
  }
  return targets;
}

void ExpectSameBits(const CanonicalWeight& a, const CanonicalWeight& b) {
  SCOPED_TRACE(ToString(a.spec));
  EXPECT_TRUE(std::ranges::equal(a.codes.span(), b.codes.span()));
  EXPECT_TRUE(std::ranges::equal(a.scales.span(), b.scales.span()));
  EXPECT_TRUE(std::ranges::equal(a.zero_points.span(), b.zero_points.span()));
  EXPECT_TRUE(std::ranges::equal(a.nested_scales.span(), b.nested_scales.span()));
  EXPECT_EQ(a.nested_offset, b.nested_offset);
}

CanonicalWeight With(const TestMatrix& matrix, const WeightSpec& target,
                     const QuantizeOptions& options) {
  auto weight = Quantize(matrix.view(), target, options);
  EXPECT_TRUE(weight.ok()) << weight.status();
  return weight.ok() ? *std::move(weight) : CanonicalWeight{};
}

TEST(QuantizeThreads, AnyNumberGivesTheSameBits) {
  const TestMatrix matrix = RandomMatrix(DType::kBF16, 517, 1283, 9);  // five threads' worth
  for (const WeightSpec& target : Targets()) {
    const CanonicalWeight one = With(matrix, target, {.threads = 1});
    for (int threads : {2, 3, 5}) ExpectSameBits(one, With(matrix, target, {.threads = threads}));
  }
  WeightSpec int4;
  int4.format = Format::kInt4;
  ExpectSameBits(With(matrix, int4, {.threads = 1, .search_scale = true}),
                 With(matrix, int4, {.threads = 5, .search_scale = true}));
}

TEST(QuantizeThreads, TheFirstFaultIsReportedWhicheverThreadFindsIt) {
  std::vector<float> values(517 * 1283, 1.0f);
  for (int64_t row : {90, 300, 500}) values[static_cast<size_t>(row * 1283 + 4)] = 1e9f;
  const TestMatrix matrix = MakeMatrix(DType::kF32, 517, 1283, values);
  for (const WeightSpec& target : Targets()) {
    if (target.format != Format::kInt4 && target.scale_layout != ScaleLayout::kChannel) continue;
    WeightSpec narrow = target;
    narrow.scale_dtype = DType::kF16;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto weight = Quantize(matrix.view(), narrow, {.threads = 5});
      ASSERT_FALSE(weight.ok());
      EXPECT_EQ(MessageOf(weight.status()).find("scales[90, 0]"), 0u) << weight.status();
    }
  }
}

TEST(QuantizeThreads, CountsOutOfRangeAreErrors) {
  const TestMatrix matrix = RandomMatrix(DType::kF32, 2, 2, 1);
  EXPECT_FALSE(Quantize(matrix.view(), WeightSpec{}, {.threads = -1}).ok());
  EXPECT_FALSE(Quantize(matrix.view(), WeightSpec{}, {.threads = 1025}).ok());
}

class QuantizeInstructionSets : public ::testing::Test {
 protected:
  void TearDown() override { Use(0); }
  // 0: what the machine has.
  static void Use(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_F(QuantizeInstructionSets, AnyOneGivesTheSameBits) {
  const TestMatrix matrix = RandomMatrix(DType::kF16, 67, 301, 10);
  const int64_t all = hwy::SupportedTargets();
  for (const WeightSpec& target : Targets()) {
    const QuantizeOptions options{.search_scale = target.format == Format::kInt4};
    Use(0);
    const CanonicalWeight expected = With(matrix, target, options);
    for (int64_t left = all; left != 0; left &= left - 1) {
      SCOPED_TRACE(hwy::TargetName(left & -left));
      Use(left & -left);
      ExpectSameBits(expected, With(matrix, target, options));
    }
  }
}

}  // namespace
}  // namespace nibble
