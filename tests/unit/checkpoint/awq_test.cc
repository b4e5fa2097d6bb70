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
  return fmt::format(R"({{"torch_dtype":"float16","quantization_config":)"
                     R"({{"quant_method":"awq","bits":4,"zero_point":true,{}}}}})",
                     fields);
}

// Eight columns a word; nibble i from the low end holds column order[i].
uint32_t Interleave(const std::vector<int>& columns) {
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    word |= static_cast<uint32_t>(columns[static_cast<size_t>(kOrder[i])]) << (4 * i);
  }
  return word;
}

CheckpointBuilder Build(const Int4Reference& layer) {
  std::vector<uint32_t> qweight;
  std::vector<uint32_t> qzeros;
  for (int64_t col = 0; col < layer.k; ++col) {
    for (int64_t c = 0; c < layer.n / 8; ++c) {
      std::vector<int> columns;
      for (int64_t j = 0; j < 8; ++j) columns.push_back(layer.Q(8 * c + j, col));
      qweight.push_back(Interleave(columns));
    }
  }
  for (int64_t g = 0; g < layer.groups; ++g) {
    for (int64_t c = 0; c < layer.n / 8; ++c) {
      std::vector<int> columns;
      for (int64_t j = 0; j < 8; ++j) columns.push_back(layer.Zero(8 * c + j, g));
      qzeros.push_back(Interleave(columns));
    }
  }
  CheckpointBuilder builder;
  builder.Add("m.p.qweight", "I32", {layer.k, layer.n / 8}, qweight)
      .Add("m.p.qzeros", "I32", {layer.groups, layer.n / 8}, qzeros)
      .AddFloats("m.p.scales", layer.scale_dtype, {layer.groups, layer.n}, layer.ScalesByGroup());
  return builder;
}

TEST(AwqTest, Gemm) {
  Int4Reference layer(72, 96, 32);
  layer.RandomZeros(0, 15);
  CheckpointBuilder builder = Build(layer);
  builder.AddFloats("m.p.bias", DType::kF16, {72}, std::vector<float>(72, 0.25f));
  const LoadedLayer loaded = LoadOnly(builder, Config(R"("group_size":32,"version":"GEMM")"));
  const WeightSpec& spec = loaded.weight.spec;
  EXPECT_EQ(loaded.layer.dialect, "awq");
  EXPECT_EQ(spec.n, 72);
  EXPECT_EQ(spec.k, 96);
  EXPECT_EQ(spec.group_size, 32);
  EXPECT_EQ(spec.dtype, DType::kF16);
  EXPECT_TRUE(spec.has_zero_points);
  EXPECT_TRUE(spec.has_bias);
  ExpectSameBits(loaded.decoded, layer.Expected());
}

TEST(AwqTest, OddInputsWholeColumnAndSymmetricZeros) {
  Int4Reference odd(8, 35, 5);
  odd.RandomZeros(0, 15);
  ExpectSameBits(LoadOnly(Build(odd), Config(R"("group_size":5)")).decoded, odd.Expected());
  const Int4Reference column(16, 40, 40);
  const LoadedLayer loaded = LoadOnly(Build(column), Config(R"("group_size":-1)"));
  EXPECT_FALSE(loaded.weight.spec.has_zero_points);
  ExpectSameBits(loaded.decoded, column.Expected());
}

TEST(AwqTest, WordGivesItsColumnsInTheInterleavedOrder) {
  CheckpointBuilder builder;
  builder.Add("p.qweight", "I32", {1, 1}, std::vector<uint32_t>{0x76543210})
      .Add("p.qzeros", "I32", {1, 1}, std::vector<uint32_t>{0})
      .AddFloats("p.scales", DType::kF16, {1, 8}, std::vector<float>(8, 1.0f));
  ExpectSameBits(LoadOnly(builder, "").decoded, {0, 4, 1, 5, 2, 6, 3, 7});
}

TEST(AwqTest, LegacyFileAndOtherKernelNames) {
  Int4Reference layer(16, 32, 16);
  layer.RandomZeros(0, 15);
  for (const char* version : {"exllama", "ipex", "gemm"}) {
    ExpectSameBits(
        LoadOnly(Build(layer), Config(fmt::format(R"("group_size":16,"version":"{}")", version)))
            .decoded,
        layer.Expected());
  }
  ExpectSameBits(
      LoadOnly(Build(layer), R"({"w_bit":4,"q_group_size":16,"zero_point":true,"version":"GEMM"})")
          .decoded,
      layer.Expected());
}

TEST(AwqTest, OtherVersionsAreRefusedByName) {
  const CheckpointBuilder builder = Build(Int4Reference(16, 32, 16));
  for (const char* version : {"gemv", "GEMV_fast"}) {
    ExpectRefused(builder, Config(fmt::format(R"("group_size":16,"version":"{}")", version)),
                  kUnimplemented, {"layer 'm.p'", "gemv", "\"gemm\" is"});
  }
  CheckpointBuilder words16;
  words16.Add("m.p.qweight", "I16", {4, 32}, std::vector<uint16_t>(128));
  ExpectRefused(words16, "", kUnimplemented, {"gemv"});
  CheckpointBuilder gemv;  // [N, K/8], zeros and scales padded at the end of each row
  gemv.Add("m.p.qweight", "I32", {32, 64}, std::vector<uint32_t>(32 * 64))
      .Add("m.p.qzeros", "I32", {32, 1}, std::vector<uint32_t>(32))
      .AddFloats("m.p.scales", DType::kF16, {32, 8}, std::vector<float>(32 * 8));
  ExpectRefused(gemv, "", kUnimplemented, {"gemv"});
  ExpectRefused(builder, R"({"quant_method":"awq","bits":8,"group_size":16})", kUnimplemented,
                {"AWQ with 8 bits"});
}

TEST(AwqTest, FaultsAreNamed) {
  const Int4Reference layer(16, 32, 16);
  const std::string config = Config(R"("group_size":16)");
  for (const std::string suffix : {"qweight", "qzeros", "scales"}) {
    CheckpointBuilder builder = Build(layer);
    builder.Remove("m.p." + suffix);
    if (suffix == "qweight") builder.Remove("m.p.scales");
    ExpectRefused(builder, config, kInvalid, {fmt::format("'m.p.{}' is missing", suffix)});
  }
  CheckpointBuilder index = Build(layer);
  ExpectRefused(index.Add("m.p.g_idx", "I32", {32}, std::vector<int32_t>(32)), config, kInvalid,
                {"g_idx: expected none"});
  CheckpointBuilder zeros = Build(layer);
  ExpectRefused(zeros.Add("m.p.qzeros", "I32", {2, 3}, std::vector<int32_t>(6)), config, kInvalid,
                {"qzeros: expected shape [2, 2]"});
  ExpectRefused(Build(layer), Config(R"("group_size":8)"), kInvalid,
                {"scales: expected 4 groups of 8"});
  ExpectRefused(Build(layer), R"({"quant_method":"gptq","bits":4,"group_size":16})", kInvalid,
                {"do not fit GPTQ"});
}

TEST(AwqTest, StrayActivationScalesAreLeftOut) {
  CheckpointBuilder builder = Build(Int4Reference(16, 32, 16));
  builder.AddFloats("m.act.scales", DType::kF16, {16}, std::vector<float>(16, 1.0f));
  const LoadedLayer loaded = LoadOnly(builder, Config(R"("group_size":16)"));
  EXPECT_EQ(loaded.layer.name, "m.p");
  ASSERT_EQ(loaded.notices.size(), 1u);
  EXPECT_NE(loaded.notices[0].find("m.act.scales"), std::string::npos);
}

}  // namespace
}  // namespace nibble::checkpoint
