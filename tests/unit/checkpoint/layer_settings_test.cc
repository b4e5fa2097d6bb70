// What a configuration says of single layers: exceptions, overrides, groups, and how they are
// named.
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "server/checkpoint/quant_config.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"
#include "tests/unit/checkpoint/random_layers.h"

namespace nibble::checkpoint {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

QuantConfig Parse(const std::string& quantization) {
  auto config = ParseQuantConfig({"{\"quantization_config\":" + quantization + "}", "", ""});
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *std::move(config) : QuantConfig();
}

TEST(SkipListTest, EveryDialectNamesItsExceptionsInItsOwnWay) {
  struct Case {
    std::string quantization;
    std::vector<std::string> skipped;
    std::vector<std::string> not_skipped;
  };
  for (
      const Case& c : {
          Case{R"({"quant_method":"bitsandbytes","llm_int8_skip_modules":["lm_head","m.vision"]})",
               {"lm_head", "language_model.lm_head", "m.vision.a"},
               {"m.lm_head.b", "m.a"}},
          Case{R"({"quant_method":"bitsandbytes","llm_int8_skip_modules":null})", {}, {"lm_head"}},
          Case{R"({"quant_method":"awq","modules_to_not_convert":["visual","gate"]})",
               {"model.visual.blocks.0", "m.mlp.gate", "m.mlp.gate_proj"},
               {"m.mlp.up"}},
          Case{R"({"quant_method":"fp8","modules_to_not_convert":["model.layers.0.mlp.gate"]})",
               {"model.layers.0.mlp.gate"},
               {"model.layers.1.mlp.gate"}},
          Case{
              R"({"quant_method":"fp8","ignored_layers":["a.q_proj"],"ignore_patterns":["re:.*lm_head"]})",
              {"a.q_proj", "m.lm_head"},
              {"b.a.q_proj", "a.q_proj.x"}},
          Case{
              R"({"quant_method":"compressed-tensors","ignore":["lm_head","re:.*\\.gate$","x.linear"]})",
              {"lm_head", "m.0.gate", "x"},
              {"m.lm_head", "m.gate_proj"}},
          Case{R"({"quant_method":"compressed-tensors","ignore":["Linear"]})", {"anything"}, {}},
          Case{R"({"quant_method":"modelopt","exclude_modules":["lm_head","*.self_attn*"]})",
               {"lm_head", "m.0.self_attn.q"},
               {"m.lm_head", "m.mlp"}},
          // A fused name stands for its parts.
          Case{R"({"quant_method":"fp8","ignored_layers":["a.qkv_proj","m.gate_up_proj"]})",
               {"a.k_proj", "m.up_proj"},
               {"a.o_proj", "m.down_proj"}},
      }) {
    const QuantConfig config = Parse(c.quantization);
    for (const std::string& name : c.skipped) {
      EXPECT_TRUE(SettingsOf(config, name).skipped) << name << " by " << c.quantization;
    }
    for (const std::string& name : c.not_skipped) {
      EXPECT_FALSE(SettingsOf(config, name).skipped) << name << " by " << c.quantization;
    }
  }
}

TEST(SkipListTest, SkippedLayersLoadAsTheTensorsSay) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.Gptq("m.a", 8, 32, 16, 0x77777777);
  layers.Dense("m.b", 8, 32);
  layers.Dense("lm_head", 4, 8);
  const auto plain = builder.Open(
      R"({"quantization_config":{"quant_method":"gptq","bits":4,"modules_to_not_convert":["m.b"]}})");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE((*plain)->notices().empty());
  ASSERT_EQ((*plain)->layers().size(), 3u);
  EXPECT_EQ((*plain)->layers()[1].dialect, "gptq");
  EXPECT_EQ((*plain)->layers()[2].dialect, "dense");
  const auto contradicted = builder.Open(
      R"({"quantization_config":{"quant_method":"gptq","bits":4,"modules_to_not_convert":["m.a"]}})");
  ASSERT_TRUE(contradicted.ok()) << contradicted.status();
  EXPECT_EQ((*contradicted)->notices(),
            (std::vector<std::string>{
                "the configuration lists it as not quantized; its tensors are, and count: m.a"}));
}

TEST(DynamicTest, TheFirstPatternThatMatchesCounts) {
  const QuantConfig config =
      Parse(R"({"quant_method":"gptq","bits":4,"group_size":128,"sym":true,"dynamic":{)"
            R"("+:.*\\.18\\..*gate.*":{"bits":8,"group_size":64},"-:.*\\.18\\..*":{},)"
            R"(".*down":{"group_size":-1,"sym":false},"+:.*\\.1.*":{"bits":2}}})");
  const LayerSettings gate = SettingsOf(config, "m.layers.18.mlp.gate_proj");
  EXPECT_EQ(gate.bits, 8);
  EXPECT_EQ(gate.group_size, 64);
  EXPECT_FALSE(gate.skipped);
  EXPECT_TRUE(SettingsOf(config, "m.layers.18.mlp.up").skipped);
  const LayerSettings down = SettingsOf(config, "m.layers.1.mlp.down");
  EXPECT_EQ(down.bits, 4);
  EXPECT_EQ(down.group_size, -1);
  EXPECT_EQ(down.sym, false);
  EXPECT_EQ(SettingsOf(config, "m.layers.1.mlp.up").bits, 2);
  EXPECT_EQ(SettingsOf(config, "m.layers.2.mlp.up").bits, 4);
}

TEST(DynamicTest, AKeyThatOtherMembersRepeatCountsOnce) {
  std::string others;
  for (int i = 0; i < 1000; ++i) others += R"({"dynamic":{"+:m":1}},)";
  const QuantConfig config = Parse(fmt::format(R"({{"quant_method":"gptq","bits":4,"others":[{}0],)"
                                               R"("dynamic":{{"+:m":{{"bits":8}}}}}})",
                                               others));
  EXPECT_EQ(config.dynamic.size(), 1u);
  EXPECT_EQ(SettingsOf(config, "m").bits, 8);
}

TEST(DynamicTest, OverridesAreHeldAgainstTheTensors) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.Gptq("m.a", 8, 64, 16);
  layers.Gptq("m.b", 8, 64, 32);
  const auto config = [](std::string_view dynamic) {
    return fmt::format(
        R"({{"quantization_config":{{"quant_method":"gptq","bits":4,"group_size":16,"dynamic":{{{}}}}}}})",
        dynamic);
  };
  ExpectRefused(builder, config(""), kInvalid, {"layer 'm.b'", "4 groups of 16", "received 2"});
  EXPECT_TRUE(builder.Open(config(R"("+:m\\.b":{"group_size":32})")).ok());
  ExpectRefused(builder, config(R"("m":{"group_size":32})"), kInvalid, {"layer 'm.a'"});
  ExpectRefused(builder, config(R"x("+:(?!m)":{"bits":4})x"), kUnimplemented,
                {"dynamic '+:(?!m)'", "look-around", "not served"});
  ExpectRefused(builder, config(R"("+:(":{"bits":4})"), kUnimplemented, {"dynamic '+:('"});
  ExpectRefused(builder, config(R"("+:m":{"bits":"4"})"), kInvalid, {"bits: expected an integer"});
}

std::string Groups(std::string_view groups, std::string_view ignore = "") {
  return fmt::format(
      R"({{"quantization_config":{{"quant_method":"compressed-tensors","config_groups":{{{}}},"ignore":[{}]}}}})",
      groups, ignore);
}

constexpr std::string_view kGroup32 =
    R"("weights":{"num_bits":4,"type":"int","strategy":"group","group_size":32,"symmetric":true})";

TEST(SchemeTest, TheMostSpecificTargetCounts) {
  const std::string text =
      Groups(R"("a":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":128}},)"
             R"("b":{"targets":["re:.*down.*"],"weights":{"num_bits":8,"group_size":-1}},)"
             R"("c":{"targets":["m.down"],"weights":{"num_bits":3}})",
             R"("re:.*lm_head")");
  const auto config = ParseQuantConfig({text, "", ""});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(SettingsOf(*config, "m.up").scheme->name, "a");
  EXPECT_EQ(SettingsOf(*config, "m.up").scheme->strategy, "group");
  EXPECT_EQ(SettingsOf(*config, "x.down").scheme->name, "b");
  EXPECT_EQ(SettingsOf(*config, "x.down").scheme->strategy, "channel");
  EXPECT_EQ(SettingsOf(*config, "m.down").scheme->name, "c");
  EXPECT_EQ(SettingsOf(*config, "x.lm_head").scheme, nullptr);
}

TEST(SchemeTest, TensorsMustAgreeWithTheirGroup) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.PackQuantized("m.a", 8, 64, 2);
  const auto group = [](std::string_view weights) {
    return Groups(fmt::format(R"("g":{{"targets":["re:m\\.a"],"weights":{{{}}}}})", weights));
  };
  EXPECT_TRUE(builder.Open(group(R"("num_bits":4,"group_size":32)")).ok());
  ExpectRefused(builder, group(R"("num_bits":4,"group_size":16)"), kInvalid,
                {"layer 'm.a'", "groups of 16 as in 'g'", "received groups of 32"});
  ExpectRefused(builder, group(R"("num_bits":4,"strategy":"channel")"), kInvalid,
                {"strategy channel"});
  ExpectRefused(builder, group(R"("num_bits":4,"type":"float")"), kInvalid, {"type 'float'"});
  ExpectRefused(builder, group(R"("num_bits":8)"), kUnimplemented, {"pack-quantized with 8 bits"});
  // What would decode to other values, were it overlooked.
  ExpectRefused(builder, group(R"("num_bits":4,"symmetric":false)"), kInvalid,
                {"'m.a.weight_zero_point' is missing"});
  for (const char* order : {R"("group")", "true", R"("dynamic")"}) {
    ExpectRefused(builder, group(fmt::format(R"("num_bits":4,"actorder":{})", order)), kInvalid,
                  {"'m.a.weight_g_idx' is missing"});
  }
  EXPECT_TRUE(builder.Open(group(R"("num_bits":4,"actorder":"weight")")).ok());
  layers.PackQuantized("m.a", 8, 64, 2, true);
  ExpectRefused(builder, group(R"("num_bits":4,"symmetric":true)"), kInvalid,
                {"weight_zero_point", "'g' is symmetric"});
  EXPECT_TRUE(builder.Open(group(R"("num_bits":4)")).ok());
}

TEST(SchemeTest, IgnoreBeatsTargets) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.PackQuantized("m.a", 8, 64, 4);
  const std::string group = fmt::format(R"("g":{{"targets":["Linear"],{}}})", kGroup32);
  ExpectRefused(builder, Groups(group), kInvalid, {"groups of 32"});
  const auto ignored = builder.Open(Groups(group, R"("m.a")"));
  ASSERT_TRUE(ignored.ok()) << ignored.status();
  EXPECT_EQ((*ignored)->notices().size(), 1u);
}

TEST(SchemeTest, PresetsStandForTheirParameters) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.PackQuantized("m.a", 8, 256, 4);
  ExpectRefused(builder, Groups(R"("W4A16":["Linear"])"), kInvalid,
                {"groups of 128 as in 'W4A16'"});
  ExpectRefused(builder, Groups(R"("W8A16":["Linear"])"), kUnimplemented, {"8 bits"});
  layers.PackQuantized("m.a", 8, 256, 2);
  EXPECT_TRUE(builder.Open(Groups(R"("W4A16":["Linear"])")).ok());
  ExpectRefused(builder, Groups(R"("w4a16_asym":["Linear"])"), kInvalid,
                {"weight_zero_point' is missing"});
  CheckpointBuilder fp8;
  RandomLayers(&fp8).Fp8("m.a", 8, 256, {8, 1});
  EXPECT_TRUE(fp8.Open(Groups(R"("FP8_DYNAMIC":["Linear"])")).ok());
  ExpectRefused(fp8, Groups(R"("FP8":["Linear"])"), kInvalid,
                {"strategy 'tensor' as in 'FP8'", "one scale a channel"});
}

TEST(SchemeTest, EachGroupHasItsOwnBlocks) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.Fp8("m.a", 8, 16, {2, 2});
  layers.Fp8("m.b", 8, 16, {4, 4});
  const auto block = [](std::string_view name, std::string_view target, int rows, int cols) {
    return fmt::format(
        R"("{}":{{"targets":["{}"],"weights":{{"num_bits":8,"type":"float","strategy":"block","block_structure":[{},{}]}}}})",
        name, target, rows, cols);
  };
  const auto opened =
      builder.Open(Groups(block("x", "m.a", 4, 8) + "," + block("y", "re:m.b", 2, 4)));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->layers()[0].spec.scale_block_n, 4);
  EXPECT_EQ((*opened)->layers()[1].spec.scale_block_k, 4);
}

TEST(SchemeTest, APatternThatCannotBeMatchedIsNoticed) {
  CheckpointBuilder builder;
  RandomLayers(&builder).PackQuantized("m.a", 8, 64, 4);
  const auto opened = builder.Open(
      Groups(fmt::format(R"x("g":{{"targets":["re:^(?!x)"],{}}})x", kGroup32), R"x("re:(?=y)")x"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->notices(),
            (std::vector<std::string>{"a pattern of targets cannot be matched, so that the tensors "
                                      "alone decide: 're:^(?!x)'",
                                      "a pattern of the exceptions cannot be matched, so that the "
                                      "tensors alone decide: 're:(?=y)'"}));
}

TEST(SchemeTest, PatternsThatWouldTakeTooLongAreRefused) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  for (int i = 0; i < 20; ++i) {
    layers.PackQuantized(fmt::format("{}.{}", i, std::string(3000, 'a')), 8, 64, 4);
  }
  // A program of some 1800 steps each.
  std::string slow = "\"re:(?:(?:a|b){1,30}){1,30}c\"";
  for (int i = 0; i < 100; ++i) slow += ",\"re:(?:(?:a|b){1,30}){1,30}d\"";
  ExpectRefused(builder, Groups("", slow), kInvalid, {"patterns", "20 layers"});
  EXPECT_TRUE(builder.Open(Groups("", R"("re:(a|b)*c")")).ok());
}

TEST(SchemeTest, MalformedListsAreNamed) {
  CheckpointBuilder builder;
  RandomLayers(&builder).PackQuantized("m.a", 8, 64, 4);
  ExpectRefused(builder, Groups(R"("g":1)"), kInvalid, {"config_groups"});
  ExpectRefused(builder, Groups(R"("g":{"targets":"Linear"})"), kInvalid, {"targets", "a list"});
  ExpectRefused(builder, Groups("", "1"), kInvalid, {"ignore: expected a list of names"});
  std::string many = "\"re:a\"";
  for (int i = 0; i < 512; ++i) many += ",\"re:a\"";
  ExpectRefused(builder, Groups(fmt::format(R"("g":{{"targets":[{}]}})", many)), kInvalid,
                {"targets", "at most 512"});
  ExpectRefused(builder, Groups("", many), kInvalid, {"ignore", "at most 512"});
  // Exact names are looked up, and may be many.
  std::string names = "\"m.a\"";
  for (int i = 0; i < 2000; ++i) names += fmt::format(",\"m.{}\"", i);
  EXPECT_TRUE(builder.Open(Groups("", names)).ok());
}

}  // namespace
}  // namespace nibble::checkpoint
