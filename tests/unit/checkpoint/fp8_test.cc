#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr std::string_view kPlain =
    R"({"torch_dtype":"bfloat16","quantization_config":{"quant_method":"fp8"}})";

std::string BlockConfig(int64_t rows, int64_t cols) {
  return fmt::format(R"({{"quantization_config":{{"quant_method":"fp8","fmt":"e4m3",)"
                     R"("weight_block_size":[{},{}]}}}})",
                     rows, cols);
}

// e = 0: m 2^-9; else (8 + m) 2^(e - 10). No NaN is drawn.
float E4m3(uint8_t code) {
  const int e = code >> 3 & 15;
  const int m = code & 7;
  const float magnitude = e == 0 ? std::ldexp(static_cast<float>(m), -9)
                                 : std::ldexp(static_cast<float>(8 + m), e - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

struct Fp8Layer {
  int64_t n;
  int64_t k;
  std::vector<uint8_t> codes;

  Fp8Layer(int64_t n_, int64_t k_) : n(n_), k(k_) {
    std::mt19937 random(5);
    for (int64_t i = 0; i < n * k; ++i) {
      codes.push_back(static_cast<uint8_t>(random() % 127 | (random() % 2) << 7));
    }
  }

  CheckpointBuilder Build() const {
    CheckpointBuilder builder;
    builder.Add("m.p.weight", "F8_E4M3", {n, k}, codes);
    return builder;
  }

  // scale(row, column)
  template <typename Scale>
  std::vector<float> Expected(const Scale& scale) const {
    std::vector<float> weight;
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t col = 0; col < k; ++col) {
        weight.push_back(E4m3(codes[static_cast<size_t>(row * k + col)]) * scale(row, col));
      }
    }
    return weight;
  }
};

std::vector<float> Scales(int64_t count, DType dtype) {
  std::mt19937 random(9);
  std::vector<float> scales;
  for (int64_t i = 0; i < count; ++i) {
    scales.push_back(RoundTo(dtype, static_cast<float>(random() % 1000 + 1) / 4096.0f));
  }
  return scales;
}

TEST(Fp8Test, PerTensorInEveryShapeTypeAndName) {
  const Fp8Layer layer(6, 10);
  for (const char* name : {"m.p.weight_scale", "m.p.weight_scale_inv"}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, std::vector<int64_t>{1}, std::vector<int64_t>{1, 1}}) {
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        const std::vector<float> scale = Scales(1, dtype);
        CheckpointBuilder builder = layer.Build();
        builder.AddFloats(name, dtype, shape, scale);
        const LoadedLayer loaded = LoadOnly(builder, kPlain);
        EXPECT_EQ(loaded.layer.dialect, "fp8");
        EXPECT_EQ(loaded.weight.spec.scale_layout, ScaleLayout::kTensor);
        EXPECT_EQ(loaded.weight.spec.scale_dtype, dtype);
        EXPECT_EQ(loaded.weight.spec.dtype, DType::kBF16);
        ExpectSameBits(loaded.decoded, layer.Expected([&](auto, auto) { return scale[0]; }));
      }
    }
  }
}

TEST(Fp8Test, PerChannel) {
  const Fp8Layer layer(6, 10);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6, 1}, std::vector<int64_t>{6}}) {
    const std::vector<float> scale = Scales(6, DType::kBF16);
    CheckpointBuilder builder = layer.Build();
    builder.AddFloats("m.p.weight_scale", DType::kBF16, shape, scale)
        .AddFloats("m.p.bias", DType::kBF16, {6}, std::vector<float>(6, 1.0f));
    const LoadedLayer loaded =
        LoadOnly(builder, R"({"quantization_config":{"quant_method":"compressed-tensors",)"
                          R"("format":"float-quantized"}})");
    EXPECT_EQ(loaded.layer.dialect, "compressed-tensors");
    EXPECT_EQ(loaded.weight.spec.scale_layout, ScaleLayout::kChannel);
    EXPECT_TRUE(loaded.weight.spec.has_bias);
    ExpectSameBits(loaded.decoded, layer.Expected([&](int64_t row, int64_t) {
      return scale[static_cast<size_t>(row)];
    }));
  }
}

TEST(Fp8Test, RaggedBlocks) {
  const Fp8Layer layer(11, 21);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<float> scale = Scales(3 * 3, dtype);
    CheckpointBuilder builder = layer.Build();
    builder.AddFloats("m.p.weight_scale_inv", dtype, {3, 3}, scale);
    const LoadedLayer loaded = LoadOnly(builder, BlockConfig(4, 8));
    EXPECT_EQ(loaded.weight.spec.scale_layout, ScaleLayout::kBlock);
    EXPECT_EQ(loaded.weight.spec.scale_block_n, 4);
    EXPECT_EQ(loaded.weight.spec.scale_block_k, 8);
    EXPECT_TRUE(loaded.notices.empty());
    ExpectSameBits(loaded.decoded, layer.Expected([&](int64_t row, int64_t col) {
      return scale[static_cast<size_t>(row / 4 * 3 + col / 8)];
    }));
  }
}

TEST(Fp8Test, LargerGridIsCutWithANotice) {
  const Fp8Layer layer(11, 21);
  const std::vector<float> scale = Scales(4 * 5, DType::kBF16);
  CheckpointBuilder builder = layer.Build();
  builder.AddFloats("m.p.weight_scale_inv", DType::kBF16, {4, 5}, scale);
  const LoadedLayer loaded = LoadOnly(builder, BlockConfig(4, 8));
  ASSERT_EQ(loaded.notices.size(), 1u);
  EXPECT_NE(loaded.notices[0].find("m.p.weight_scale_inv"), std::string::npos);
  ExpectSameBits(loaded.decoded, layer.Expected([&](int64_t row, int64_t col) {
    return scale[static_cast<size_t>(row / 4 * 5 + col / 8)];
  }));
}

TEST(Fp8Test, ExponentScales) {
  const Fp8Layer layer(4, 16);
  const std::vector<uint8_t> exponents = {127, 120, 130, 1};
  for (const char* dtype : {"U8", "F8_E8M0"}) {
    CheckpointBuilder builder = layer.Build();
    builder.Add("m.p.weight_scale_inv", dtype, {2, 2}, exponents);
    const LoadedLayer loaded = LoadOnly(builder, BlockConfig(2, 8));
    EXPECT_EQ(loaded.weight.spec.scale_dtype, DType::kF32);
    ExpectSameBits(loaded.decoded, layer.Expected([&](int64_t row, int64_t col) {
      return std::ldexp(1.0f, exponents[static_cast<size_t>(row / 2 * 2 + col / 8)] - 127);
    }));
  }
  CheckpointBuilder lowest = layer.Build();
  lowest.Add("m.p.weight_scale", "F8_E8M0", {1}, std::vector<uint8_t>{0});
  const LoadedLayer loaded = LoadOnly(lowest, kPlain);
  EXPECT_EQ(LoadAsFloat(loaded.weight.scales.data(), DType::kF32, 0), 0x1p-127f);
  lowest.Add("m.p.weight_scale", "F8_E8M0", {1}, std::vector<uint8_t>{255});
  EXPECT_TRUE(
      std::isnan(LoadAsFloat(LoadOnly(lowest, kPlain).weight.scales.data(), DType::kF32, 0)));
}

TEST(Fp8Test, BlockShapeComesFromTheConfiguration) {
  const Fp8Layer layer(3, 200);
  const std::vector<float> scale = Scales(2, DType::kF32);
  CheckpointBuilder builder = layer.Build();
  builder.AddFloats("m.p.weight_scale", DType::kF32, {1, 2}, scale);
  const auto expected =
      layer.Expected([&](int64_t, int64_t col) { return scale[static_cast<size_t>(col / 128)]; });
  const std::string group =
      R"({{"quantization_config":{{"quant_method":"compressed-tensors","config_groups":)"
      R"({{"g":{{"weights":{{"num_bits":8,"strategy":"block","block_structure":{}}}}}}}}}}})";
  for (const char* structure : {"[128,128]", "\"128x128\""}) {
    ExpectSameBits(LoadOnly(builder, fmt::format(fmt::runtime(group), structure)).decoded,
                   expected);
  }
  for (const char* structure : {"[128]", "[0,128]", "\"128\"", "\"128x\"", "128"}) {
    ExpectRefused(builder, fmt::format(fmt::runtime(group), structure), kInvalid,
                  {"config.json", "block_structure"});
  }
  ExpectRefused(builder, kPlain, kInvalid, {"weight_scale", "weight_block_size"});
  const LoadedLayer assumed = LoadOnly(builder, "");
  ASSERT_EQ(assumed.notices.size(), 1u);
  EXPECT_NE(assumed.notices[0].find("128x128"), std::string::npos);
  ExpectSameBits(assumed.decoded, expected);
}

TEST(Fp8Test, StaticInputScale) {
  const Fp8Layer layer(4, 8);
  CheckpointBuilder builder = layer.Build();
  builder.AddFloats("m.p.weight_scale", DType::kF32, {}, {0.5f})
      .AddFloats("m.p.input_scale", DType::kBF16, {1}, {0.25f});
  const LoadedLayer loaded = LoadOnly(builder, kPlain);
  EXPECT_TRUE(loaded.weight.spec.has_input_scale);
  EXPECT_EQ(loaded.weight.input_scale, 0.25f);
  for (float bad : {0.0f, -1.0f, std::nanf(""), INFINITY}) {
    builder.AddFloats("m.p.input_scale", DType::kF32, {1}, {bad});
    ExpectRefused(builder, kPlain, kInvalid, {"input_scale", "positive finite"});
  }
  builder.AddFloats("m.p.input_scale", DType::kF32, {2}, {1.0f, 1.0f});
  ExpectRefused(builder, kPlain, kInvalid, {"input_scale", "one element"});
}

TEST(Fp8Test, MissingScaleIsAnError) {
  const Fp8Layer layer(4, 8);
  ExpectRefused(layer.Build(), kPlain, kInvalid,
                {"layer 'm.p'", "'m.p.weight_scale' is missing", "weight_scale_inv"});
  CheckpointBuilder orphan;
  orphan.AddFloats("m.p.weight_scale", DType::kF32, {1}, {1.0f});
  ExpectRefused(orphan, kPlain, kInvalid,
                {"'m.p.weight' or 'm.p.weight_packed' is missing", "m.p.weight_scale"});
  CheckpointBuilder both = layer.Build();
  both.AddFloats("m.p.weight_scale", DType::kF32, {1}, {1.0f})
      .AddFloats("m.p.weight_scale_inv", DType::kF32, {1}, {1.0f});
  ExpectRefused(both, kPlain, kInvalid, {"both weight_scale and weight_scale_inv"});
}

TEST(Fp8Test, MisshapenScalesAreNamed) {
  const Fp8Layer layer(11, 21);
  const auto with = [&](std::string dtype, std::vector<int64_t> shape) {
    CheckpointBuilder builder = layer.Build();
    int64_t bytes = DTypeBits(dtype) / 8;
    for (int64_t dim : shape) bytes *= dim;
    return builder.Add("m.p.weight_scale", std::move(dtype), std::move(shape),
                       std::vector<uint8_t>(static_cast<size_t>(bytes)));
  };
  ExpectRefused(with("F32", {5}), kPlain, kInvalid, {"weight_scale", "one for each of 11 outputs"});
  ExpectRefused(with("F32", {1, 1, 2}), kPlain, kInvalid, {"weight_scale", "F32 [1, 1, 2]"});
  ExpectRefused(with("F32", {0}), kPlain, kInvalid, {"weight_scale", "F32 [0]"});
  ExpectRefused(with("F32", {2, 3}), BlockConfig(4, 8), kInvalid, {"at least [3, 3]", "[2, 3]"});
  ExpectRefused(with("F32", {3, 2}), BlockConfig(4, 8), kInvalid, {"at least [3, 3]", "[3, 2]"});
  ExpectRefused(with("F64", {1}), kPlain, kInvalid, {"weight_scale: expected dtype"});
  ExpectRefused(with("F32", {3}), kPlain, kUnimplemented, {"3 scales", "fused"});
}

TEST(Fp8Test, OtherFp8TypesAreRefusedByName) {
  for (const char* dtype : {"F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    CheckpointBuilder builder;
    builder.Add("m.p.weight", dtype, {2, 2}, std::vector<uint8_t>(4))
        .AddFloats("m.p.weight_scale", DType::kF32, {1}, {1.0f});
    ExpectRefused(builder, kPlain, kUnimplemented, {"layer 'm.p'", dtype, "F8_E4M3 is"});
  }
  CheckpointBuilder named = Fp8Layer(2, 2).Build();
  named.AddFloats("m.p.weight_scale", DType::kF32, {1}, {1.0f});
  ExpectRefused(named, R"({"quantization_config":{"quant_method":"fp8","fmt":"e5m2"}})",
                kUnimplemented, {"'e5m2'", "\"e4m3\" is"});
  CheckpointBuilder experts;
  experts.Add("m.experts.weight", "F8_E4M3", {2, 2, 2}, std::vector<uint8_t>(8))
      .AddFloats("m.experts.weight_scale", DType::kF32, {1}, {1.0f});
  ExpectRefused(experts, kPlain, kUnimplemented, {"layer 'm.experts'", "[2, 2, 2]"});
}

TEST(Fp8Test, ZeroPointsMustBeZero) {
  CheckpointBuilder builder = Fp8Layer(2, 2).Build();
  builder.AddFloats("m.p.weight_scale", DType::kF32, {1}, {0.5f})
      .Add("m.p.weight_zero_point", "F8_E4M3", {1}, std::vector<uint8_t>{0});
  EXPECT_EQ(LoadOnly(builder, kPlain).decoded.size(), 4u);
  builder.Add("m.p.weight_zero_point", "F8_E4M3", {1}, std::vector<uint8_t>{1});
  ExpectRefused(builder, kPlain, kUnimplemented, {"zero points"});
}

}  // namespace
}  // namespace nibble::checkpoint
