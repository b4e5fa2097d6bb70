// Layers quantized as they are loaded, and the patterns that choose them.
#include "server/checkpoint/quantized.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MatchesPattern, StarIsAnyTextAndQuestionMarkOneByte) {
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_TRUE(MatchesPattern("*", "model.layers.0"));
  EXPECT_TRUE(MatchesPattern("*.mlp.*", "model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(MatchesPattern("*proj", "q_proj_proj"));
  EXPECT_TRUE(MatchesPattern("model.layers.?.*", "model.layers.7.mlp"));
  EXPECT_TRUE(MatchesPattern("a**b", "ab"));
  EXPECT_FALSE(MatchesPattern("model.layers.?.*", "model.layers.17.mlp"));
  EXPECT_FALSE(MatchesPattern("mlp", "model.mlp"));
  EXPECT_FALSE(MatchesPattern("a", ""));
  EXPECT_FALSE(MatchesPattern("", "a"));
  EXPECT_FALSE(MatchesPattern("*a", "ab"));
  EXPECT_FALSE(MatchesPattern("[ab]", "a"));
}

TEST(MatchesPattern, ManyStarsTakeNoTime) {
  std::string pattern;
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_FALSE(MatchesPattern(pattern + "b", std::string(2000, 'a')));
}

TEST(LayerFilter, HeadsAndRoutersAreLeftOutUnlessIncluded) {
  const LayerFilter plain;
  EXPECT_TRUE(plain.Selects("model.layers.0.mlp.gate_proj"));
  for (const char* name : {"lm_head", "model.lm_head", "model.layers.0.mlp.gate",
                           "model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.router"}) {
    EXPECT_FALSE(plain.Selects(name)) << name;
  }
  const LayerFilter all{{"*"}, {"*.0.*"}};
  EXPECT_TRUE(all.Selects("lm_head"));
  EXPECT_FALSE(all.Selects("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE((LayerFilter{{"*.mlp.*"}, {}}).Selects("model.layers.0.self_attn.q_proj"));
}

std::vector<float> Ramp(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 97) * 0.01f - 0.4f);
  return values;
}

CheckpointBuilder Model() {
  CheckpointBuilder builder;
  builder.AddFloats("lm_head.weight", DType::kBF16, {4, 8}, Ramp(32));
  builder.AddFloats("model.a.weight", DType::kBF16, {6, 80}, Ramp(480));
  builder.AddFloats("model.a.bias", DType::kF16, {6}, Ramp(6));
  builder.AddFloats("model.b.weight", DType::kF32, {3, 8}, Ramp(24));
  builder.AddFloats("model.norm.weight", DType::kBF16, {8}, Ramp(8));
  return builder;
}

QuantizePlan PlanOf(std::string_view text, LayerFilter filter = {}) {
  auto target = ParseQuantizeTarget(text);
  EXPECT_TRUE(target.ok()) << target.status();
  return {*std::move(target), std::move(filter)};
}

TEST(QuantizeOnLoad, SelectedMatricesAreQuantizedWithTheirBias) {
  for (const char* text :
       {"nf4", "fp4+block=32+nested", "int4+group=32+zero-points", "fp8+block"}) {
    SCOPED_TRACE(text);
    const QuantizePlan plan = PlanOf(text, {{}, {"*.b"}});
    auto source = Model().Open("");
    ASSERT_TRUE(source.ok()) << source.status();
    const CanonicalWeight dense = (*source)->Load(1).value();
    auto quantized = QuantizeOnLoad(*std::move(source), plan);
    ASSERT_TRUE(quantized.ok()) << quantized.status();
    std::vector<std::string> formats;
    for (size_t i = 0; i < (*quantized)->layers().size(); ++i) {
      const Layer& layer = (*quantized)->layers()[i];
      const auto weight = (*quantized)->Load(i);
      ASSERT_TRUE(weight.ok()) << weight.status();
      EXPECT_EQ(weight->spec, layer.spec) << layer.name;
      EXPECT_TRUE(ValidateWeight(*weight).ok()) << layer.name;
      EXPECT_EQ(layer.bytes, GeometryOf(layer.spec)->total_bytes);
      formats.emplace_back(FormatName(layer.spec.format));
    }
    const std::string_view format(FormatName(plan.target.spec.format));
    EXPECT_THAT(formats, ElementsAre("dense", format, "dense", "dense"));
    const CanonicalWeight loaded = (*quantized)->Load(1).value();
    EXPECT_TRUE(std::ranges::equal(loaded.bias.span(), dense.bias.span()));
    const auto expected =
        Quantize(MakeConstView(dense.codes.data(), DType::kBF16, 6, 80), loaded.spec);
    EXPECT_TRUE(std::ranges::equal(loaded.codes.span(), expected->codes.span()));
    EXPECT_TRUE(std::ranges::equal(loaded.scales.span(), expected->scales.span()));
    EXPECT_FALSE((*quantized)->Load(99).ok());
  }
}

TEST(QuantizeOnLoad, ANoticeSaysWhereNothingIsSelected) {
  auto quantized = QuantizeOnLoad(Model().Open("").value(), PlanOf("nf4", {{"x"}, {}}));
  ASSERT_TRUE(quantized.ok());
  EXPECT_THAT((*quantized)->notices(),
              ::testing::Contains(HasSubstr("no layer was quantized to nf4+block=64")));
}

TEST(QuantizeOnLoad, AWeightThatCannotBeQuantizedIsNamed) {
  CheckpointBuilder builder = Model();
  builder.AddFloats("model.b.weight", DType::kF32, {2, 2}, {1, 2, INFINITY, 4});
  auto quantized = QuantizeOnLoad(builder.Open("").value(), PlanOf("nf4"));
  ASSERT_TRUE(quantized.ok());
  ExpectStatus((*quantized)->Load(2).status(), absl::StatusCode::kInvalidArgument,
               {"layer 'model.b'", "matrix[1, 0]", "inf"});
}

}  // namespace
}  // namespace nibble::checkpoint
