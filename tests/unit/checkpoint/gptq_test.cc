#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"
#include "tests/unit/checkpoint/int4_reference.h"

namespace nibble::checkpoint {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::string Config(std::string_view fields) {
  return fmt::format(R"({{"torch_dtype":"bfloat16","quantization_config":)"
                     R"({{"quant_method":"gptq","bits":4,{}}}}})",
                     fields);
}

// Words of `bits`-bit fields, `count` of them, packed from the low end: field(i).
std::vector<uint32_t> Pack(int64_t count, const std::function<int(int64_t)>& field) {
  std::vector<uint32_t> words(static_cast<size_t>((count + 7) / 8));
  for (int64_t i = 0; i < count; ++i) {
    words[static_cast<size_t>(i / 8)] |= (static_cast<uint32_t>(field(i)) & 15u) << (4 * (i % 8));
  }
  return words;
}

// `stored_minus` is 1 for v1, 0 for v2.
CheckpointBuilder Build(const Int4Reference& layer, int stored_minus, bool with_index) {
  const int64_t rows = (layer.k + 7) / 8;
  std::vector<uint32_t> qweight(static_cast<size_t>(rows * layer.n));
  for (int64_t row = 0; row < layer.n; ++row) {
    const auto column = Pack(layer.k, [&](int64_t col) { return layer.Q(row, col); });
    for (int64_t r = 0; r < rows; ++r) {
      qweight[static_cast<size_t>(r * layer.n + row)] = column[static_cast<size_t>(r)];
    }
  }
  std::vector<uint32_t> qzeros;
  for (int64_t g = 0; g < layer.groups; ++g) {
    const auto words =
        Pack(layer.n, [&](int64_t row) { return layer.Zero(row, g) - stored_minus; });
    qzeros.insert(qzeros.end(), words.begin(), words.end());
  }
  CheckpointBuilder builder;
  builder.Add("m.p.qweight", "I32", {rows, layer.n}, qweight)
      .Add("m.p.qzeros", "I32", {layer.groups, (layer.n + 7) / 8}, qzeros)
      .AddFloats("m.p.scales", layer.scale_dtype, {layer.groups, layer.n}, layer.ScalesByGroup());
  if (with_index) builder.Add("m.p.g_idx", "I32", {layer.k}, layer.group);
  return builder;
}

TEST(GptqTest, SymmetricV1) {
  const Int4Reference layer(24, 128, 32);
  for (bool with_index : {false, true}) {
    const LoadedLayer loaded =
        LoadOnly(Build(layer, 1, with_index), Config(R"("group_size":32,"sym":true)"));
    const WeightSpec& spec = loaded.weight.spec;
    EXPECT_EQ(loaded.layer.name, "m.p");
    EXPECT_EQ(loaded.layer.dialect, "gptq");
    EXPECT_EQ(spec.format, Format::kInt4);
    EXPECT_EQ(spec.n, 24);
    EXPECT_EQ(spec.k, 128);
    EXPECT_EQ(spec.group_size, 32);
    EXPECT_EQ(spec.dtype, DType::kBF16);
    EXPECT_EQ(spec.scale_dtype, DType::kF16);
    EXPECT_FALSE(spec.has_zero_points);
    EXPECT_FALSE(spec.has_group_index);
    EXPECT_TRUE(loaded.notices.empty());
    ExpectSameBits(loaded.decoded, layer.Expected());
  }
}

TEST(GptqTest, WordHoldsItsValuesFromTheLowEnd) {
  CheckpointBuilder builder;
  builder.Add("p.qweight", "I32", {1, 1}, std::vector<uint32_t>{0x76543210})
      .Add("p.qzeros", "I32", {1, 1}, std::vector<uint32_t>{0x7})
      .AddFloats("p.scales", DType::kF16, {1, 1}, {0.5f});
  ExpectSameBits(LoadOnly(builder, Config(R"("group_size":8)")).decoded,
                 {-4.0f, -3.5f, -3.0f, -2.5f, -2.0f, -1.5f, -1.0f, -0.5f});
}

TEST(GptqTest, AsymmetricV1AndV2) {
  Int4Reference layer(16, 64, 16);
  layer.RandomZeros(1, 15);
  const LoadedLayer v1 = LoadOnly(Build(layer, 1, false), Config(R"("group_size":16,"sym":false)"));
  EXPECT_TRUE(v1.weight.spec.has_zero_points);
  EXPECT_TRUE(v1.notices.empty());
  ExpectSameBits(v1.decoded, layer.Expected());
  layer.RandomZeros(0, 15);
  const LoadedLayer v2 =
      LoadOnly(Build(layer, 0, false),
               Config(R"("group_size":16,"sym":false,"checkpoint_format":"gptq_v2")"));
  EXPECT_TRUE(v2.notices.empty());
  ExpectSameBits(v2.decoded, layer.Expected());
}

TEST(GptqTest, GptqModelSpellsTheVersionAsFormat) {
  Int4Reference layer(8, 16, 16);
  layer.RandomZeros(0, 15);
  ExpectSameBits(
      LoadOnly(Build(layer, 0, false), Config(R"("group_size":16,"sym":false,"format":"gptq_v2")"))
          .decoded,
      layer.Expected());
  ExpectSameBits(
      LoadOnly(Build(layer, 0, false), R"({"bits":4,"sym":false,"format":"gptq_v2"})").decoded,
      layer.Expected());
}

TEST(GptqTest, WrappedZerosAreCounted) {
  Int4Reference layer(8, 32, 16);
  layer.RandomZeros(1, 15);
  layer.zeros[3] = 0;
  layer.zeros[9] = 0;
  const LoadedLayer loaded =
      LoadOnly(Build(layer, 1, false), Config(R"("group_size":16,"sym":false)"));
  ExpectSameBits(loaded.decoded, layer.Expected());
  ASSERT_EQ(loaded.notices.size(), 1u);
  EXPECT_NE(loaded.notices[0].find("m.p.qzeros (2 of 16)"), std::string::npos) << loaded.notices[0];
}

TEST(GptqTest, ActOrder) {
  Int4Reference layer(16, 64, 16);
  layer.RandomZeros(1, 15);
  std::shuffle(layer.group.begin(), layer.group.end(), std::mt19937(3));
  const LoadedLayer loaded =
      LoadOnly(Build(layer, 1, true), Config(R"("group_size":16,"sym":false,"desc_act":true)"));
  EXPECT_TRUE(loaded.weight.spec.has_group_index);
  EXPECT_EQ(loaded.weight.group_index.size(), 64u * 4);
  ExpectSameBits(loaded.decoded, layer.Expected());
}

TEST(GptqTest, ActOrderFlagWithTrivialIndexIsDropped) {
  const Int4Reference layer(8, 64, 16);
  const LoadedLayer loaded =
      LoadOnly(Build(layer, 1, true), Config(R"("group_size":16,"desc_act":true)"));
  EXPECT_FALSE(loaded.weight.spec.has_group_index);
}

TEST(GptqTest, WholeColumnAndRaggedShapes) {
  const Int4Reference column(8, 48, 48);
  const LoadedLayer loaded = LoadOnly(Build(column, 1, false), Config(R"("group_size":-1)"));
  EXPECT_EQ(loaded.weight.spec.group_size, 48);
  ExpectSameBits(loaded.decoded, column.Expected());

  Int4Reference ragged(13, 45, 32);  // N, K and the last group are all cut short
  ragged.RandomZeros(1, 15);
  const LoadedLayer odd =
      LoadOnly(Build(ragged, 1, true), Config(R"("group_size":32,"sym":false)"));
  EXPECT_EQ(odd.weight.spec.k, 45);
  ExpectSameBits(odd.decoded, ragged.Expected());

  const Int4Reference wide(8, 32, 128);  // a group larger than K
  ExpectSameBits(LoadOnly(Build(wide, 1, false), Config(R"("group_size":128)")).decoded,
                 wide.Expected());
}

TEST(GptqTest, ScaleTypesAndBias) {
  Int4Reference layer(8, 32, 16);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    layer.scale_dtype = dtype;
    for (float& scale : layer.scales) scale = RoundTo(dtype, scale);
    CheckpointBuilder builder = Build(layer, 1, false);
    builder.AddFloats("m.p.bias", DType::kF16, {8}, std::vector<float>(8, 0.0f));
    const LoadedLayer loaded = LoadOnly(builder, Config(R"("group_size":16)"));
    EXPECT_EQ(loaded.weight.spec.scale_dtype, dtype);
    EXPECT_TRUE(loaded.weight.spec.has_bias);
    ExpectSameBits(loaded.decoded, layer.Expected());
  }
}

TEST(GptqTest, WithoutConfigurationTheShapesDecide) {
  const Int4Reference layer(16, 64, 16);
  const LoadedLayer loaded = LoadOnly(Build(layer, 1, false), "");
  EXPECT_EQ(loaded.weight.spec.group_size, 16);
  EXPECT_EQ(loaded.weight.spec.dtype, DType::kF16);
  ExpectSameBits(loaded.decoded, layer.Expected());
  const Int4Reference ragged(8, 44, 16);
  ExpectSameBits(LoadOnly(Build(ragged, 1, true), "").decoded, ragged.Expected());
}

TEST(GptqTest, DynamicLayersMayHaveTheirOwnGroupSize) {
  const Int4Reference layer(16, 64, 16);
  const std::string dynamic = R"("group_size":32,"dynamic":{"+:.*p":{"group_size":16}})";
  ExpectSameBits(LoadOnly(Build(layer, 1, false), Config(dynamic)).decoded, layer.Expected());
  ExpectRefused(Build(layer, 1, false), Config(R"("group_size":32)"), kInvalid,
                {"scales: expected 2 groups of 32", "received 4"});
}

TEST(GptqTest, WrongVersionLabelIsRefused) {
  const Int4Reference layer(16, 64, 16);
  ExpectRefused(Build(layer, 0, false), Config(R"("group_size":16,"sym":true)"), kInvalid,
                {"layer 'm.p'", "every field is 8", "checkpoint_format to \"gptq_v2\""});
  ExpectRefused(Build(layer, 1, false), Config(R"("group_size":16,"checkpoint_format":"gptq_v2")"),
                kInvalid, {"every field is 7", "checkpoint_format to \"gptq\""});
  // The way out: sym false says that 9 is meant.
  const LoadedLayer meant =
      LoadOnly(Build(layer, 0, false), Config(R"("group_size":16,"sym":false)"));
  EXPECT_TRUE(meant.weight.spec.has_zero_points);
}

TEST(GptqTest, OtherLayoutsAreRefusedByName) {
  const CheckpointBuilder builder = Build(Int4Reference(16, 64, 16), 1, false);
  for (const char* format : {"marlin", "bitblas", "gptq_p"}) {
    ExpectRefused(builder, Config(fmt::format(R"("checkpoint_format":"{}")", format)),
                  kUnimplemented, {"layer 'm.p'", format, "\"gptq_v2\" is"});
  }
  ExpectRefused(builder, Config(R"("is_marlin_format":true)"), kUnimplemented, {"marlin"});
  ExpectRefused(builder, Config(R"("pack_dtype":"int16")"), kUnimplemented, {"int16"});
  CheckpointBuilder marlin;
  marlin.Add("m.p.B", "I32", {1, 8}, std::vector<uint32_t>(8))
      .AddFloats("m.p.s", DType::kF16, {1, 8}, std::vector<float>(8));
  ExpectRefused(marlin, Config(R"("group_size":16)"), kUnimplemented, {"'m.p'", "marlin"});
}

TEST(GptqTest, OtherWidthsAreRefusedByName) {
  CheckpointBuilder builder;
  builder.Add("m.p.qweight", "I32", {16, 32}, std::vector<uint32_t>(16 * 32))
      .Add("m.p.qzeros", "I32", {1, 8}, std::vector<uint32_t>(8))
      .AddFloats("m.p.scales", DType::kF16, {1, 32}, std::vector<float>(32));
  const std::string config =
      R"({"quantization_config":{"quant_method":"gptq","bits":8,"group_size":-1}})";
  ExpectRefused(builder, config, kUnimplemented, {"layer 'm.p'", "GPTQ with 8 bits", "4 bits is"});
  ExpectRefused(builder, "", kUnimplemented, {"GPTQ with 8 bits"});
  builder.Add("m.p.qzeros", "I32", {1, 3}, std::vector<uint32_t>(3));
  ExpectRefused(builder, "", kUnimplemented, {"GPTQ with 3 bits"});
  builder.Add("m.p.qzeros", "I32", {1, 5}, std::vector<uint32_t>(5));
  ExpectRefused(builder, "", kInvalid, {"qzeros", "expected 4 columns"});
}

TEST(GptqTest, MissingAndMisshapenTensorsAreNamed) {
  const Int4Reference layer(16, 64, 16);
  const std::string config = Config(R"("group_size":16)");
  for (const std::string suffix : {"qweight", "qzeros", "scales"}) {
    CheckpointBuilder builder = Build(layer, 1, true);
    builder.Remove("m.p." + suffix);
    ExpectRefused(builder, config, kInvalid,
                  {"layer 'm.p'", fmt::format("tensor 'm.p.{}' is missing", suffix)});
  }
  const auto with = [&](const std::string& name, std::string dtype, std::vector<int64_t> shape) {
    CheckpointBuilder builder = Build(layer, 1, true);
    int64_t bytes = DTypeBits(dtype) / 8;
    for (int64_t dim : shape) bytes *= dim;
    builder.Add(name, std::move(dtype), std::move(shape),
                std::vector<uint8_t>(static_cast<size_t>(bytes)));
    return builder;
  };
  ExpectRefused(with("m.p.qweight", "I64", {8, 16}), config, kInvalid, {"qweight: expected dtype"});
  ExpectRefused(with("m.p.qweight", "I32", {8, 2, 8}), config, kInvalid,
                {"qweight: expected two positive dimensions"});
  ExpectRefused(with("m.p.qweight", "I32", {0, 16}), config, kInvalid,
                {"qweight: expected two positive dimensions"});
  ExpectRefused(with("m.p.qweight", "I32", {7, 16}), config, kInvalid, {"g_idx"});
  ExpectRefused(with("m.p.qweight", "I32", {8, 15}), config, kInvalid, {"do not fit GPTQ"});
  ExpectRefused(with("m.p.qzeros", "U32", {4, 2}), config, kInvalid,
                {"qzeros: expected dtype I32"});
  ExpectRefused(with("m.p.qzeros", "I32", {3, 2}), config, kInvalid,
                {"qzeros: expected shape [4, 2]"});
  ExpectRefused(with("m.p.scales", "I32", {4, 16}), config, kInvalid, {"scales: expected dtype"});
  ExpectRefused(with("m.p.scales", "F16", {5, 16}), config, kInvalid, {"[5, 2]"});
  ExpectRefused(with("m.p.g_idx", "I64", {64}), config, kInvalid, {"g_idx: expected dtype I32"});
  ExpectRefused(with("m.p.g_idx", "I32", {65}), config, kInvalid, {"g_idx"});
  ExpectRefused(with("m.p.g_idx", "I32", {64, 1}), config, kInvalid, {"g_idx"});
}

TEST(GptqTest, GroupIndexIsChecked) {
  for (int bad : {4, -1, 1 << 30}) {
    Int4Reference layer(16, 64, 16);
    layer.group[5] = bad;
    ExpectRefused(Build(layer, 1, true), Config(R"("group_size":16)"), kInvalid,
                  {"g_idx[5]", "[0, 4)", fmt::format("received {}", bad)});
  }
}

TEST(GptqTest, ActOrderWithoutAnIndexIsRefused) {
  const Int4Reference layer(16, 64, 16);
  ExpectRefused(Build(layer, 1, false), Config(R"("group_size":16,"desc_act":true)"), kInvalid,
                {"layer 'm.p'", "tensor 'm.p.g_idx' is missing"});
  // One group has no order.
  const Int4Reference column(16, 64, 64);
  ExpectSameBits(
      LoadOnly(Build(column, 1, false), Config(R"("group_size":-1,"desc_act":true)")).decoded,
      column.Expected());
}

TEST(GptqTest, GroupSizeIsChecked) {
  const Int4Reference layer(16, 64, 16);
  for (int bad : {0, -2}) {
    ExpectRefused(Build(layer, 1, false), Config(fmt::format(R"("group_size":{})", bad)), kInvalid,
                  {"group_size", fmt::format("received {}", bad)});
  }
}

TEST(GptqTest, AutoRoundPackingIsTaken) {
  const Int4Reference layer(16, 64, 16);
  const LoadedLayer loaded =
      LoadOnly(Build(layer, 1, false),
               R"({"quantization_config":{"quant_method":"auto-round","bits":4,"group_size":16,)"
               R"("packing_format":"auto_round:auto_gptq"}})");
  EXPECT_EQ(loaded.layer.dialect, "gptq");
  ExpectSameBits(loaded.decoded, layer.Expected());
}

}  // namespace
}  // namespace nibble::checkpoint
