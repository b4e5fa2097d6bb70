#include <algorithm>
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
constexpr std::string_view kConfig =
    R"({"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized",)"
    R"("config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int",)"
    R"("strategy":"group","group_size":16}}}}})";

enum class Zeros { kNone, kPacked, kSigned };

// Every value is stored with an offset of 8, sequential from the low end of a word.
CheckpointBuilder Build(const Int4Reference& layer, Zeros zeros) {
  const int64_t cols = (layer.k + 7) / 8;
  std::vector<uint32_t> words(static_cast<size_t>(layer.n * cols));
  for (int64_t row = 0; row < layer.n; ++row) {
    for (int64_t col = 0; col < layer.k; ++col) {
      words[static_cast<size_t>(row * cols + col / 8)] |= static_cast<uint32_t>(layer.Q(row, col))
                                                          << (4 * (col % 8));
    }
  }
  CheckpointBuilder builder;
  builder.Add("m.p.weight_packed", "I32", {layer.n, cols}, words)
      .Add("m.p.weight_shape", "I64", {2}, std::vector<int64_t>{layer.n, layer.k})
      .AddFloats("m.p.weight_scale", layer.scale_dtype, {layer.n, layer.groups}, layer.scales);
  if (zeros == Zeros::kPacked) {
    std::vector<uint32_t> packed(static_cast<size_t>((layer.n + 7) / 8 * layer.groups));
    for (int64_t row = 0; row < layer.n; ++row) {
      for (int64_t g = 0; g < layer.groups; ++g) {
        packed[static_cast<size_t>(row / 8 * layer.groups + g)] |=
            static_cast<uint32_t>(layer.Zero(row, g)) << (4 * (row % 8));
      }
    }
    builder.Add("m.p.weight_zero_point", "I32", {(layer.n + 7) / 8, layer.groups}, packed);
  } else if (zeros == Zeros::kSigned) {
    std::vector<int8_t> plain;
    for (int zero : layer.zeros) plain.push_back(static_cast<int8_t>(zero - 8));
    builder.Add("m.p.weight_zero_point", "I8", {layer.n, layer.groups}, plain);
  }
  return builder;
}

TEST(PackQuantizedTest, SymmetricGroups) {
  const Int4Reference layer(12, 64, 16);
  const LoadedLayer loaded = LoadOnly(Build(layer, Zeros::kNone), kConfig);
  const WeightSpec& spec = loaded.weight.spec;
  EXPECT_EQ(loaded.layer.name, "m.p");
  EXPECT_EQ(loaded.layer.dialect, "compressed-tensors");
  EXPECT_EQ(spec.format, Format::kInt4);
  EXPECT_EQ(spec.group_size, 16);
  EXPECT_EQ(spec.dtype, DType::kF16);
  EXPECT_FALSE(spec.has_zero_points);
  EXPECT_TRUE(loaded.notices.empty());
  ExpectSameBits(loaded.decoded, layer.Expected());
}

TEST(PackQuantizedTest, WordHoldsItsValuesFromTheLowEnd) {
  CheckpointBuilder builder;
  builder.Add("p.weight_packed", "I32", {1, 1}, std::vector<uint32_t>{0x76543210})
      .Add("p.weight_shape", "I64", {2}, std::vector<int64_t>{1, 8})
      .AddFloats("p.weight_scale", DType::kBF16, {1, 1}, {1.0f});
  ExpectSameBits(LoadOnly(builder, kConfig).decoded, {-8, -7, -6, -5, -4, -3, -2, -1});
}

TEST(PackQuantizedTest, ZeroPointsPackedAndPlain) {
  Int4Reference layer(13, 64, 16);  // 13 rows: the last word of zero points is partial
  layer.RandomZeros(0, 15);
  for (Zeros zeros : {Zeros::kPacked, Zeros::kSigned}) {
    const LoadedLayer loaded = LoadOnly(Build(layer, zeros), kConfig);
    EXPECT_TRUE(loaded.weight.spec.has_zero_points);
    ExpectSameBits(loaded.decoded, layer.Expected());
  }
}

TEST(PackQuantizedTest, RaggedInputsAndChannelScales) {
  for (int64_t k : {1, 5, 11, 30, 63}) {
    const Int4Reference layer(5, k, k);
    const LoadedLayer loaded = LoadOnly(Build(layer, Zeros::kNone), "");
    EXPECT_EQ(loaded.weight.spec.group_size, k);
    ExpectSameBits(loaded.decoded, layer.Expected());
  }
}

TEST(PackQuantizedTest, ActOrder) {
  Int4Reference layer(8, 64, 16);
  std::shuffle(layer.group.begin(), layer.group.end(), std::mt19937(3));
  CheckpointBuilder builder = Build(layer, Zeros::kNone);
  builder.Add("m.p.weight_g_idx", "I32", {64}, layer.group);
  const LoadedLayer loaded = LoadOnly(builder, kConfig);
  EXPECT_TRUE(loaded.weight.spec.has_group_index);
  ExpectSameBits(loaded.decoded, layer.Expected());

  const auto odd = std::find(layer.group.begin(), layer.group.end(), 1);
  *odd = 2;
  builder.Add("m.p.weight_g_idx", "I32", {64}, layer.group);
  ExpectRefused(builder, kConfig, kInvalid, {"weight_g_idx", "16 inputs in each group"});
  *odd = 4;
  builder.Add("m.p.weight_g_idx", "I32", {64}, layer.group);
  ExpectRefused(builder, kConfig, kInvalid, {"weight_g_idx", "[0, 4)"});
  builder.Add("m.p.weight_g_idx", "I32", {64}, std::vector<int32_t>(64, -1));
  EXPECT_FALSE(LoadOnly(builder, kConfig).weight.spec.has_group_index);
}

TEST(PackQuantizedTest, FaultsAreNamed) {
  const Int4Reference layer(16, 64, 16);
  for (const std::string suffix : {"weight_packed", "weight_scale", "weight_shape"}) {
    CheckpointBuilder builder = Build(layer, Zeros::kPacked);
    builder.Remove("m.p." + suffix);
    ExpectRefused(builder, kConfig, kInvalid,
                  {"layer 'm.p'", fmt::format("'m.p.{}'", suffix), "is missing"});
  }
  const auto shape = [&](std::vector<int64_t> values) {
    CheckpointBuilder builder = Build(layer, Zeros::kNone);
    return builder.Add("m.p.weight_shape", "I64", {2}, values);
  };
  ExpectRefused(shape({16, 72}), kConfig, kInvalid, {"weight_packed: expected shape [16, 9]"});
  ExpectRefused(shape({-1, 64}), kConfig, kInvalid, {"weight_shape", "[-1, 64]"});
  ExpectRefused(shape({16, int64_t{1} << 62}), kConfig, kInvalid, {"weight_packed"});
  CheckpointBuilder groups = Build(layer, Zeros::kNone);
  groups.AddFloats("m.p.weight_scale", DType::kF16, {16, 3}, std::vector<float>(48));
  ExpectRefused(groups, kConfig, kInvalid, {"weight_scale", "divides K 64"});
  CheckpointBuilder zeros = Build(layer, Zeros::kNone);
  zeros.Add("m.p.weight_zero_point", "I32", {16, 4}, std::vector<int32_t>(64));
  ExpectRefused(zeros, kConfig, kInvalid, {"weight_zero_point: expected shape [2, 4]"});
  zeros.Add("m.p.weight_zero_point", "I8", {16, 4}, std::vector<int8_t>(64, 8));
  ExpectRefused(zeros, kConfig, kInvalid, {"weight_zero_point", "[-8, 7]", "received 8"});
}

TEST(PackQuantizedTest, OtherWidthsAreRefusedByName) {
  CheckpointBuilder builder = Build(Int4Reference(16, 64, 16), Zeros::kNone);
  builder.Add("m.p.weight_packed", "I32", {16, 16}, std::vector<uint32_t>(256));
  ExpectRefused(builder, "", kUnimplemented, {"layer 'm.p'", "pack-quantized with 8 bits"});
  std::string config(kConfig);
  config.replace(config.find("\"num_bits\":4"), 12, "\"num_bits\":3");
  ExpectRefused(builder, config, kUnimplemented, {"pack-quantized with 3 bits"});
}

}  // namespace
}  // namespace nibble::checkpoint
