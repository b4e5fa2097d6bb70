// Dense layers, what is left out, and what is refused by name.
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(DenseTest, MatricesAndVectors) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    CheckpointBuilder builder;
    builder.AddFloats("lm_head.weight", dtype, {3, 2}, {1, 2, 3, 4, 5, 6})
        .AddFloats("lm_head.bias", DType::kF32, {3}, {7, 8, 9})
        .AddFloats("m.norm.weight", dtype, {4}, {1, 2, 3, 4});
    const auto checkpoint = builder.Open("");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto& layers = (*checkpoint)->layers();
    ASSERT_EQ(layers.size(), 2u);
    EXPECT_EQ(layers[0].name, "lm_head");
    EXPECT_EQ(layers[0].dialect, "dense");
    EXPECT_EQ(layers[0].spec.format, Format::kDense);
    EXPECT_EQ(layers[0].spec.n, 3);
    EXPECT_EQ(layers[0].spec.k, 2);
    EXPECT_EQ(layers[0].spec.dtype, dtype);
    EXPECT_EQ(layers[0].bytes, 6 * static_cast<int64_t>(DTypeBytes(dtype)) + 12);
    EXPECT_EQ(layers[1].name, "m.norm");
    EXPECT_EQ(layers[1].spec.n, 1);
    EXPECT_EQ(layers[1].spec.k, 4);
    EXPECT_TRUE((*checkpoint)->notices().empty());
    const auto weight = (*checkpoint)->Load(0);
    ASSERT_TRUE(weight.ok()) << weight.status();
    std::vector<float> decoded(6);
    ASSERT_TRUE(DecodeReference(*weight, 0, 3, decoded).ok());
    ExpectSameBits(decoded, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(LoadAsFloat(weight->bias.data(), DType::kF32, 2), 9.0f);
    ASSERT_TRUE((*checkpoint)->Load(1).ok());
    ExpectStatus((*checkpoint)->Load(2).status(), kInvalid, {"layer below 2"});
  }
}

TEST(DenseTest, WhatIsNoLinearLayerIsLeftOutWithANotice) {
  CheckpointBuilder builder;
  builder.AddFloats("m.p.weight", DType::kF16, {1, 1}, {1})
      .AddFloats("m.embed_tokens.weight", DType::kF16, {2, 1}, {1, 2})
      .AddFloats("transformer.wte.weight", DType::kF16, {2, 1}, {1, 2})
      .AddFloats("m.ln.weight", DType::kF16, {2}, {1, 2})
      .AddFloats("m.ln.bias", DType::kF16, {2}, {1, 2})
      .AddFloats("m.conv.weight", DType::kF16, {1, 1, 2}, {1, 2})
      .AddFloats("m.none.weight", DType::kF16, {0, 4}, {})
      .Add("m.index.weight", "I64", {1, 1}, std::vector<int64_t>{1})
      .AddFloats("m.rotary_emb.inv_freq", DType::kF32, {2}, {1, 2})
      .AddFloats("m.attn.k_scale", DType::kF32, {}, {1});
  const auto checkpoint = builder.Open("");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ((*checkpoint)->layers().size(), 2u);
  EXPECT_EQ((*checkpoint)->layers()[0].name, "m.ln");
  EXPECT_EQ((*checkpoint)->layers()[1].name, "m.p");
  const std::vector<std::string> expected = {
      "embedding is no linear layer, left out: m.embed_tokens and 1 more",
      "tensor is no part of a linear layer, left out: m.attn.k_scale and 1 more",
      "the bias of a norm is left out: m.ln",
      "weight is neither a matrix nor a vector, left out: m.conv and 1 more",
      "weight is of a type that is not served, left out: m.index I64 [1, 1]"};
  EXPECT_EQ((*checkpoint)->notices(), expected);
}

TEST(DenseTest, NothingToServeIsAnError) {
  CheckpointBuilder builder;
  builder.AddFloats("m.embed_tokens.weight", DType::kF16, {2, 1}, {1, 2});
  ExpectRefused(builder, "", kInvalid, {"at least one linear layer"});
  ExpectRefused(CheckpointBuilder(), "", kInvalid, {"at least one linear layer"});
}

TEST(DenseTest, WrongBiasIsRefused) {
  CheckpointBuilder builder;
  builder.AddFloats("m.p.weight", DType::kF16, {2, 1}, {1, 2})
      .AddFloats("m.p.bias", DType::kF16, {2, 1}, {1, 2});
  ExpectRefused(builder, "", kInvalid, {"layer 'm.p'", "bias: expected shape [2]", "F16 [2, 1]"});
}

struct Refusal {
  std::string name;
  CheckpointBuilder builder;
  std::string kind;
};

std::vector<Refusal> Refusals() {
  using Tensor = std::tuple<std::string, std::string, std::vector<int64_t>>;
  std::vector<Refusal> list;
  const auto add = [&](std::string name, std::string kind, const std::vector<Tensor>& tensors) {
    CheckpointBuilder builder;
    for (const auto& [tensor, dtype, shape] : tensors) {
      int64_t bits = DTypeBits(dtype);
      for (int64_t dim : shape) bits *= dim;
      builder.Add(tensor, dtype, shape, std::vector<uint8_t>(static_cast<size_t>(bits / 8)));
    }
    list.push_back({std::move(name), builder, std::move(kind)});
  };
  add("BitsandbytesInt8", "bitsandbytes int8",
      {{"m.p.weight", "I8", {2, 4}}, {"m.p.SCB", "F32", {2}}, {"m.p.weight_format", "U8", {}}});
  add("BitsandbytesUnderscored", "underscored",
      {{"m.p.weight", "U8", {4, 1}}, {"m.p.weight_absmax", "F32", {1}}});
  add("CompressedInt8", "INT8",
      {{"m.p.weight", "I8", {2, 4}}, {"m.p.weight_scale", "F32", {2, 1}}});
  add("ModelOptNvfp4", "NVFP4",
      {{"m.p.weight", "U8", {2, 8}},
       {"m.p.weight_scale", "F8_E4M3", {2, 1}},
       {"m.p.weight_scale_2", "F32", {}}});
  add("CompressedNvfp4", "NVFP4",
      {{"m.p.weight_packed", "U8", {2, 8}},
       {"m.p.weight_scale", "F8_E4M3", {2, 1}},
       {"m.p.weight_global_scale", "F32", {1}}});
  add("CompressedMxfp4", "MXFP4",
      {{"m.p.weight_packed", "U8", {2, 16}}, {"m.p.weight_scale", "U8", {2, 1}}});
  add("Mxfp4Experts", "MXFP4",
      {{"m.p_blocks", "U8", {1, 2, 1, 16}}, {"m.p_scales", "U8", {1, 2, 1}}});
  add("Mxfp4ExpertsDotted", "MXFP4",
      {{"m.p.blocks", "U8", {1, 2, 1, 16}}, {"m.p.scales", "U8", {1, 2, 1}}});
  add("UncompressedBesideScale", "beside its weight_scale",
      {{"m.p.weight", "BF16", {2, 8}}, {"m.p.weight_scale", "F32", {2, 1}}});
  return list;
}

class RefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, NamesKindAndLayer) {
  ExpectRefused(GetParam().builder, "", kUnimplemented,
                {"layer 'm.p'", GetParam().kind, "is not served; "});
}

INSTANTIATE_TEST_SUITE_P(Kinds, RefusalTest, ::testing::ValuesIn(Refusals()),
                         [](const auto& refusal) { return refusal.param.name; });

TEST(RefusedTest, UnknownMethodAndGguf) {
  CheckpointBuilder builder;
  builder.AddFloats("m.p.weight", DType::kF16, {1, 1}, {1});
  ExpectRefused(builder, R"({"quantization_config":{"quant_method":"hqq"}})", kUnimplemented,
                {"quant_method 'hqq'", "bitsandbytes, gptq, awq"});
  const std::string gguf("GGUF\3\0\0\0", 8);
  ExpectStatus(Checkpoint::FromBytes(std::as_bytes(std::span(gguf)), nullptr, "", "up").status(),
               kUnimplemented, {"up: GGUF"});
}

TEST(RefusedTest, BytesWithoutCompanions) {
  CheckpointBuilder builder;
  builder.Add("m.p.weight", "I8", {2, 2}, std::vector<int8_t>(4));
  ExpectRefused(builder, "", kInvalid, {"'m.p.SCB' is missing"});
}

TEST(RefusedTest, TwoFormsOfOneLayer) {
  CheckpointBuilder builder;
  builder.AddFloats("m.p.weight", DType::kF16, {8, 8}, std::vector<float>(64))
      .Add("m.p.qweight", "I32", {1, 8}, std::vector<uint32_t>(8))
      .Add("m.p.qzeros", "I32", {1, 1}, std::vector<uint32_t>(1))
      .AddFloats("m.p.scales", DType::kF16, {1, 8}, std::vector<float>(8));
  ExpectRefused(builder, "", kInvalid, {"layer 'm.p'", "two in different forms"});
}

TEST(CheckpointTest, MalformedFileNamesTheLabel) {
  const std::string bytes = "short";
  ExpectStatus(
      Checkpoint::FromBytes(std::as_bytes(std::span(bytes)), nullptr, "", "upload 7").status(),
      kInvalid, {"upload 7", "at least 8"});
  ExpectStatus(Checkpoint::FromBytes({}, nullptr, "", "none").status(), kInvalid, {"none"});
}

TEST(CheckpointTest, MalformedConfigurationIsNamed) {
  CheckpointBuilder builder;
  builder.AddFloats("m.p.weight", DType::kF16, {1, 1}, {1});
  struct Case {
    std::string config;
    std::string message;
  };
  std::string deep = "1";
  for (int i = 0; i < 70; ++i) deep = "[" + deep + "]";
  for (const Case& c : {
           Case{"[]", "JSON object"},
           Case{"{", "not valid"},
           Case{"{\"a\":\"\xff\"}", "not valid"},
           Case{R"({"a":1,"a":2})", "'a' appears twice"},
           Case{fmt::format(R"({{"a":{}}})", deep), "nested deeper"},
           Case{std::string("{}\0", 3), "NUL"},
           Case{R"({"quantization_config":4})", "quantization_config: expected an object"},
           Case{R"({"quantization_config":{"bits":"4"}})", "bits: expected an integer"},
           Case{R"({"quantization_config":{"bits":4.5}})", "bits: expected an integer"},
           Case{R"({"quantization_config":{"group_size":18446744073709551615}})", "group_size"},
           Case{R"({"quantization_config":{"sym":1}})", "sym: expected a boolean"},
           Case{R"({"quantization_config":{"quant_method":1}})", "quant_method: expected a string"},
           Case{R"({"quantization_config":{"config_groups":[]}})", "config_groups"},
           Case{R"({"quantization_config":{"config_groups":{"a":{"weights":1}}}})", "weights"},
       }) {
    ExpectRefused(builder, c.config, kInvalid, {"test: config.json", c.message});
  }
}

TEST(CheckpointTest, UnrelatedConfigurationIsIgnored) {
  CheckpointBuilder builder;
  builder.AddFloats("m.p.weight", DType::kF16, {1, 1}, {1});
  for (const char* config :
       {"", "{}", R"({"quantization_config":null,"torch_dtype":3,"version":[1]})",
        R"({"text_config":7})", R"({"quantization_config":{"bits":null,"version":2.5}})"}) {
    const auto checkpoint = builder.Open(config);
    EXPECT_TRUE(checkpoint.ok()) << config << ": " << checkpoint.status();
  }
}

TEST(CheckpointTest, LoadsFromManyThreads) {
  CheckpointBuilder builder;
  for (int i = 0; i < 4; ++i) {
    const std::string prefix = fmt::format("m.{}", i);
    builder.Add(prefix + ".qweight", "I32", {8, 16}, std::vector<uint32_t>(128, 0x76543210u))
        .Add(prefix + ".qzeros", "I32", {1, 2}, std::vector<uint32_t>(2, 0x12345678u))
        .AddFloats(prefix + ".scales", DType::kF16, {1, 16}, std::vector<float>(16, 1.0f));
  }
  const auto opened = builder.Open("");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint& checkpoint = **opened;
  ASSERT_EQ(checkpoint.layers().size(), 4u);
  std::vector<std::vector<float>> decoded(16, std::vector<float>(16 * 64));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < decoded.size(); ++t) {
    threads.emplace_back([&, t] {
      const auto weight = checkpoint.Load(t % 4);
      ASSERT_TRUE(weight.ok()) << weight.status();
      EXPECT_TRUE(DecodeReference(*weight, 0, 16, decoded[t]).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& weight : decoded) ExpectSameBits(weight, decoded[0]);
  EXPECT_EQ(decoded[0][0], -9.0f);  // 0 - (8 + 1)
}

}  // namespace
}  // namespace nibble::checkpoint
