// What belongs to the model rather than to a dialect: GPT-2's transposed layers, tied heads, the
// selection of layers, and the survey of a directory.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"
#include "tests/unit/checkpoint/random_layers.h"

namespace nibble::checkpoint {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(Conv1dTest, Gpt2LayersAreStoredAsTheirTranspose) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    CheckpointBuilder builder;
    builder.AddFloats("h.0.attn.c_attn.weight", dtype, {2, 3}, {1, 2, 3, 4, 5, 6})
        .AddFloats("h.0.attn.c_attn.bias", dtype, {3}, {7, 8, 9});
    for (const char* config : {R"({"model_type":"gpt2"})", ""}) {  // without one the bias tells
      const LoadedLayer loaded = LoadOnly(builder, config);
      EXPECT_EQ(loaded.weight.spec.n, 3);
      EXPECT_EQ(loaded.weight.spec.k, 2);
      EXPECT_TRUE(loaded.weight.spec.has_bias);
      ExpectSameBits(loaded.decoded, {1, 4, 2, 5, 3, 6});
    }
  }
}

TEST(Conv1dTest, OtherModelsGiveTheNameToLinearLayers) {
  CheckpointBuilder builder;
  builder.AddFloats("h.0.mlp.c_fc.weight", DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6})
      .AddFloats("h.0.mlp.c_fc.bias", DType::kF32, {3}, {7, 8, 9});
  for (const char* config : {R"({"model_type":"gpt_bigcode"})", ""}) {
    const LoadedLayer loaded = LoadOnly(builder, config);
    EXPECT_EQ(loaded.weight.spec.n, 3);
    ExpectSameBits(loaded.decoded, {1, 2, 3, 4, 5, 6});
  }
  ExpectRefused(builder, R"({"model_type":"gpt2"})", kInvalid, {"bias: expected shape [2]"});
}

TEST(Conv1dTest, WhatCouldBeEitherIsRefused) {
  CheckpointBuilder builder;
  builder.AddFloats("h.0.attn.c_proj.weight", DType::kF32, {2, 2}, {1, 2, 3, 4})
      .AddFloats("h.0.attn.c_proj.bias", DType::kF32, {2}, {5, 6});
  ExpectRefused(builder, "", kUnimplemented,
                {"layer 'h.0.attn.c_proj'", "'c_proj' of an unknown model", "model_type"});
  EXPECT_TRUE(builder.Open(R"({"model_type":"gpt2"})").ok());
}

std::vector<std::string> NamesOf(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const Layer& layer : checkpoint.layers()) names.push_back(layer.name);
  return names;
}

TEST(TiedHeadTest, TheHeadIsMadeOfTheEmbedding) {
  struct Case {
    std::string embedding;
    std::string config;
    std::string head;
  };
  for (const Case& c : {
           Case{"model.embed_tokens", R"({"tie_word_embeddings":true})", "lm_head"},
           Case{"model.embed_tokens", R"({"model_type":"gemma2"})", "lm_head"},
           Case{"wte", R"({"model_type":"gpt2"})", "lm_head"},
           Case{"language_model.model.embed_tokens",
                R"({"tie_word_embeddings":false,"text_config":{"tie_word_embeddings":true}})",
                "language_model.lm_head"},
       }) {
    CheckpointBuilder builder;
    builder.AddFloats(c.embedding + ".weight", DType::kBF16, {3, 2}, {1, 2, 3, 4, 5, 6});
    const LoadedLayer loaded = LoadOnly(builder, c.config);
    EXPECT_EQ(loaded.layer.name, c.head);
    EXPECT_EQ(loaded.layer.dialect, "dense");
    ExpectSameBits(loaded.decoded, {1, 2, 3, 4, 5, 6});
  }
}

TEST(TiedHeadTest, TensorsOfItsOwnAreLeftOutWhenTied) {
  CheckpointBuilder builder;
  builder.AddFloats("model.embed_tokens.weight", DType::kBF16, {2, 2}, {1, 2, 3, 4});
  RandomLayers(&builder).Gptq("lm_head", 8, 32, 16);  // a redundant quantized copy
  const LoadedLayer tied = LoadOnly(
      builder, R"({"tie_word_embeddings":true,"quantization_config":{"quant_method":"gptq"}})");
  EXPECT_EQ(tied.layer.dialect, "dense");
  ExpectSameBits(tied.decoded, {1, 2, 3, 4});
  EXPECT_EQ(tied.notices.back(),
            "tied to the embedding, so that tensors of its own are left out: lm_head");
  // Whether a head that is not tied is quantized, its tensors say.
  const LoadedLayer own = LoadOnly(builder, R"({"quantization_config":{"quant_method":"gptq"}})");
  EXPECT_EQ(own.layer.dialect, "gptq");
}

TEST(TiedHeadTest, OnlyTheHeadIsThere) {
  CheckpointBuilder builder;
  builder.AddFloats("lm_head.weight", DType::kBF16, {2, 1}, {1, 2});
  EXPECT_EQ(LoadOnly(builder, R"({"tie_word_embeddings":true})").layer.name, "lm_head");
}

TEST(TiedHeadTest, AnUntiedModelWithoutAHeadSaysSo) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.Dense("model.a", 2, 4);
  layers.Dense("model.embed_tokens", 2, 4);
  const auto opened = builder.Open(R"({"model_type":"llama"})");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(NamesOf(**opened), std::vector<std::string>{"model.a"});
  EXPECT_EQ((*opened)->notices().back(),
            "there is no lm_head, nor tie_word_embeddings to take it from: model.embed_tokens");
}

TEST(SelectionTest, LayersAreTakenByPattern) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  for (const char* name : {"m.0.mlp.up", "m.0.attn.o", "m.1.mlp.up", "m.10.mlp.up"}) {
    layers.Dense(name, 2, 4);
  }
  // Not served, and not asked for.
  builder.Add("x.weight", "I8", {2, 4}, std::vector<int8_t>(8))
      .AddFloats("x.SCB", DType::kF32, {2}, {1, 2});
  OpenOptions options;
  options.layers = {R"(\.0\.)", "^m.10"};
  const auto opened = builder.Open("", options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(NamesOf(**opened),
            (std::vector<std::string>{"m.0.attn.o", "m.0.mlp.up", "m.10.mlp.up"}));
  options.layers = {"x"};
  ExpectStatus(builder.Open("", options).status(), kUnimplemented, {"bitsandbytes int8"});
  options.layers = {"none", "(?i)NEVER"};
  ExpectStatus(builder.Open("", options).status(), kInvalid, {"layers", "5 layers", "2 of none"});
  options.layers = {"(?!a)"};
  ExpectStatus(builder.Open("", options).status(), kInvalid, {"layers", "'(?!a)'"});
}

TEST(SurveyTest, ServedAndRefusedLayersAreListed) {
  ScratchDirectory directory;
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.Gptq("m.a", 8, 32, 16);
  layers.Dense("m.b", 2, 4);
  builder.Add("m.c.weight", "I8", {2, 4}, std::vector<int8_t>(8))
      .AddFloats("m.c.SCB", DType::kF32, {2}, {1, 2})
      .Add("m.d.weight", "F8_E4M3", {2, 2}, std::vector<uint8_t>(4))
      .Add("m.e.qzeros", "I32", {1, 1}, std::vector<int32_t>(1));
  directory.Write("model.safetensors", builder.Bytes());
  const auto survey = SurveyDirectory(directory.path());
  ASSERT_TRUE(survey.ok()) << survey.status();
  ASSERT_EQ(survey->layers.size(), 2u);
  EXPECT_EQ(survey->layers[0].name, "m.a");
  EXPECT_EQ(survey->layers[1].name, "m.b");
  ASSERT_EQ(survey->refused.size(), 3u);
  EXPECT_EQ(survey->refused[0].name, "m.c");
  EXPECT_EQ(survey->refused[0].stored, "SCB F32 [2], weight I8 [2, 4]");
  EXPECT_EQ(survey->refused[0].bytes, 16);
  ExpectStatus(survey->refused[0].reason, kUnimplemented, {"bitsandbytes int8"});
  ExpectStatus(survey->refused[1].reason, kInvalid, {"'m.d.weight_scale' is missing"});
  ExpectStatus(survey->refused[2].reason, kInvalid, {"'m.e.qweight' is missing"});
}

TEST(SurveyTest, AnUnknownMethodRefusesEveryLayer) {
  ScratchDirectory directory;
  CheckpointBuilder builder;
  RandomLayers(&builder).Dense("m.b", 2, 4);
  directory.Write("model.safetensors", builder.Bytes());
  directory.Write("config.json", R"({"quantization_config":{"quant_method":"hqq"}})");
  const auto survey = SurveyDirectory(directory.path());
  ASSERT_TRUE(survey.ok()) << survey.status();
  EXPECT_TRUE(survey->layers.empty());
  ASSERT_EQ(survey->refused.size(), 1u);
  ExpectStatus(survey->refused[0].reason, kUnimplemented, {"quant_method 'hqq'"});
}

TEST(SurveyTest, AMalformedFileIsAnError) {
  ScratchDirectory directory;
  ExpectStatus(SurveyDirectory(directory.path()).status(), absl::StatusCode::kNotFound, {});
  directory.Write("model.safetensors", "short");
  ExpectStatus(SurveyDirectory(directory.path()).status(), kInvalid, {"model.safetensors"});
}

TEST(ReleaseTest, PagesGivenBackAreReadAgain) {
  ScratchDirectory directory;
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.Dense("m.a", 64, 512);
  layers.Gptq("m.b", 128, 1024, 128);
  directory.Write("model.safetensors", builder.Bytes());
  const auto opened = Checkpoint::Open(directory.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (size_t i = 0; i < 2; ++i) {
    const Layer& layer = (*opened)->layers()[i];
    std::vector<float> before(static_cast<size_t>(layer.spec.n * layer.spec.k));
    std::vector<float> after(before.size());
    auto weight = (*opened)->Load(i);
    ASSERT_TRUE(weight.ok()) << weight.status();
    ASSERT_TRUE(DecodeReference(*weight, 0, layer.spec.n, before).ok());
    (*opened)->Release(i);
    ASSERT_TRUE(DecodeReference(*weight, 0, layer.spec.n, after).ok());  // still borrowed
    ExpectSameBits(after, before);
    weight = (*opened)->Load(i);
    ASSERT_TRUE(weight.ok()) << weight.status();
    ASSERT_TRUE(DecodeReference(*weight, 0, layer.spec.n, after).ok());
    ExpectSameBits(after, before);
  }
  (*opened)->Release(2);  // none
  EXPECT_TRUE((*opened)->CheckIntact().ok());
  // Pages and what is decoded: only GPTQ's codes and scales (and zero points) are.
  EXPECT_EQ((*opened)->layers()[0].host_bytes, 64 * 512 * 2);
  EXPECT_GT((*opened)->layers()[1].host_bytes, 2 * 128 * 1024 / 2);
}

}  // namespace
}  // namespace nibble::checkpoint
