#include <array>
#include <bit>
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
constexpr std::string_view kConfig =
    R"({"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true}})";

const std::vector<float> kNf4 = {-1.0f,
                                 -0.6961928009986877f,
                                 -0.5250730514526367f,
                                 -0.39491748809814453f,
                                 -0.28444138169288635f,
                                 -0.18477343022823334f,
                                 -0.09105003625154495f,
                                 0.0f,
                                 0.07958029955625534f,
                                 0.16093020141124725f,
                                 0.24611230194568634f,
                                 0.33791524171829224f,
                                 0.44070982933044434f,
                                 0.5626170039176941f,
                                 0.7229568362236023f,
                                 1.0f};

// The table as the library stores it: +0 at index 8.
std::vector<float> Fp4(float code_8) {
  const std::array<float, 8> half = {0.0f,        1.0f / 192, 2.0f / 3,    1.0f,
                                     1.0f / 3.0f, 0.5f,       1.0f / 6.0f, 0.25f};
  std::vector<float> table(half.begin(), half.end());
  for (float value : half) table.push_back(-value);
  table[8] = code_8;
  return table;
}

// A layer written plainly from its codes and scales.
struct BnbLayer {
  int64_t n = 3;
  int64_t k = 64;
  int64_t block_size = 64;
  std::string type = "nf4";
  std::string dtype = "bfloat16";
  std::vector<uint8_t> codes;   // [N*K], 0..15
  std::vector<float> absmax;    // [B], plain
  std::vector<uint8_t> packed;  // two codes a byte

  explicit BnbLayer(int64_t n_, int64_t k_, int64_t block_size_ = 64)
      : n(n_), k(k_), block_size(block_size_) {
    std::mt19937 random(static_cast<uint32_t>(n * 1000 + k));
    for (int64_t i = 0; i < n * k; ++i) codes.push_back(random() % 16);
    for (int64_t b = 0; b < Blocks(); ++b) {
      absmax.push_back(static_cast<float>(random() % 10000) / 777.0f);
    }
    for (int64_t i = 0; i < n * k; i += 2) {
      const int low = i + 1 < n * k ? codes[static_cast<size_t>(i + 1)] : 7;
      packed.push_back(static_cast<uint8_t>(codes[static_cast<size_t>(i)] << 4 | low));
    }
  }

  int64_t Blocks() const { return (n * k + block_size - 1) / block_size; }

  std::string State(std::string_view extra = "") const {
    return fmt::format(
        R"({{"quant_type": "{}", "blocksize": {}, "dtype": "{}", "shape": [{}, {}]{}}})", type,
        block_size, dtype, n, k, extra);
  }

  CheckpointBuilder Build() const {
    CheckpointBuilder builder;
    builder.Add("m.p.weight", "U8", {static_cast<int64_t>(packed.size()), 1}, packed)
        .Add("m.p.weight.absmax", "F32", {static_cast<int64_t>(absmax.size())}, absmax)
        .Add("m.p.weight.quant_map", "F32", {16}, type == "nf4" ? kNf4 : Fp4(0.0f))
        .AddText("m.p.weight.quant_state.bitsandbytes__" + type, State());
    return builder;
  }

  std::vector<float> Expected(const std::vector<float>& scales) const {
    const std::vector<float> table = type == "nf4" ? kNf4 : Fp4(-0.0f);
    std::vector<float> weight;
    for (int64_t i = 0; i < n * k; ++i) {
      const float scale = scales[static_cast<size_t>(i / block_size)];
      weight.push_back(table[codes[static_cast<size_t>(i)]] * scale);
    }
    return weight;
  }
};

TEST(BitsandbytesTest, PlainNf4) {
  const BnbLayer layer(5, 128);
  const LoadedLayer loaded = LoadOnly(layer.Build(), kConfig);
  EXPECT_EQ(loaded.layer.name, "m.p");
  EXPECT_EQ(loaded.layer.dialect, "bitsandbytes");
  EXPECT_EQ(loaded.weight.spec.format, Format::kNF4);
  EXPECT_EQ(loaded.weight.spec.dtype, DType::kBF16);
  EXPECT_FALSE(loaded.weight.spec.nested);
  EXPECT_EQ(loaded.layer.bytes, 5 * 128 / 2 + 10 * 4);
  EXPECT_TRUE(loaded.notices.empty());
  ExpectSameBits(loaded.decoded, layer.Expected(layer.absmax));
}

TEST(BitsandbytesTest, SanityVector) {
  BnbLayer layer(1, 4);
  layer.packed = {0x7F, 0x08};
  layer.absmax = {2.0f};
  ExpectSameBits(LoadOnly(layer.Build(), "").decoded, {0.0f, 2.0f, -2.0f, 0.15916059911251068f});
}

TEST(BitsandbytesTest, BlocksCrossRowsAndTheLastIsPartial) {
  for (const auto& [n, k] : {std::pair{7, 33}, {1, 1}, {3, 31}, {50, 96}}) {
    const BnbLayer layer(n, k, 32);
    ExpectSameBits(LoadOnly(layer.Build(), kConfig).decoded, layer.Expected(layer.absmax));
  }
}

TEST(BitsandbytesTest, Fp4CodeEightIsNegativeZero) {
  BnbLayer layer(2, 64);
  layer.type = "fp4";
  layer.dtype = "float16";
  const LoadedLayer loaded = LoadOnly(layer.Build(), kConfig);
  EXPECT_EQ(loaded.weight.spec.format, Format::kFP4);
  EXPECT_EQ(loaded.weight.spec.dtype, DType::kF16);
  ExpectSameBits(loaded.decoded, layer.Expected(layer.absmax));
}

TEST(BitsandbytesTest, NestedScalesAreRoundedTwice) {
  const BnbLayer layer(300, 65, 64);  // 305 blocks: two nested blocks
  const int64_t blocks = layer.Blocks();
  std::mt19937 random(1);
  std::vector<uint8_t> codes;
  for (int64_t b = 0; b < blocks; ++b) codes.push_back(random() % 256);
  std::vector<float> map;
  for (int i = 0; i < 256; ++i) map.push_back(static_cast<float>(i - 127) / 128.0f * 0.9929f);
  const std::vector<float> nested = {0.0371f, 0.0213f};
  const float offset = 0.05052706599235535f;
  std::vector<float> scales;
  for (size_t b = 0; b < static_cast<size_t>(blocks); ++b) {
    const volatile float product = map[codes[b]] * nested[b / 256];
    scales.push_back(product + offset);
  }
  CheckpointBuilder builder = layer.Build();
  builder.Add("m.p.weight.absmax", "U8", {blocks}, codes)
      .Add("m.p.weight.nested_absmax", "F32", {2}, nested)
      .Add("m.p.weight.nested_quant_map", "F32", {256}, map)
      .AddText("m.p.weight.quant_state.bitsandbytes__nf4",
               layer.State(R"(, "nested_blocksize": 256, "nested_dtype": "float32",)"
                           R"( "nested_offset": 0.05052706599235535)"));
  const LoadedLayer loaded = LoadOnly(builder, kConfig);
  EXPECT_TRUE(loaded.weight.spec.nested);
  ExpectSameBits(loaded.decoded, layer.Expected(scales));

  CheckpointBuilder without_map = builder;
  ExpectRefused(without_map.Remove("m.p.weight.nested_quant_map"), kConfig, kInvalid,
                {"layer 'm.p'", "'m.p.weight.nested_quant_map' is missing"});
  CheckpointBuilder without_scales = builder;
  ExpectRefused(without_scales.Remove("m.p.weight.nested_absmax"), kConfig, kInvalid,
                {"'m.p.weight.nested_absmax' is missing"});
  CheckpointBuilder short_scales = builder;
  ExpectRefused(short_scales.Add("m.p.weight.nested_absmax", "F32", {1}, std::vector<float>{1.0f}),
                kConfig, kInvalid, {"weight.nested_absmax", "at least 8 bytes", "received 4"});
  CheckpointBuilder plain_absmax = builder;
  ExpectRefused(plain_absmax.Add("m.p.weight.absmax", "F32", {blocks}, layer.absmax), kConfig,
                kInvalid, {"weight.absmax", "expected dtype U8"});
  CheckpointBuilder nan_map = builder;
  map[3] = std::nanf("");
  ExpectRefused(nan_map.Add("m.p.weight.nested_quant_map", "F32", {256}, map), kConfig, kInvalid,
                {"nested_quant_map[3]"});
}

TEST(BitsandbytesTest, NestedStateIsChecked) {
  const BnbLayer layer(1, 64);
  CheckpointBuilder builder = layer.Build();
  builder.Add("m.p.weight.absmax", "U8", {1}, std::vector<uint8_t>{1})
      .Add("m.p.weight.nested_absmax", "F32", {1}, std::vector<float>{1.0f})
      .Add("m.p.weight.nested_quant_map", "F32", {256}, std::vector<float>(256));
  struct Case {
    std::string extra;
    std::string message;
  };
  for (const Case& c :
       {Case{R"(, "nested_dtype": "float32", "nested_offset": 0.1)", "nested_blocksize"},
        Case{R"(, "nested_blocksize": 0, "nested_dtype": "float32", "nested_offset": 0.1)",
             "nested_blocksize"},
        Case{R"(, "nested_blocksize": 256, "nested_dtype": "float16", "nested_offset": 0.1)",
             "nested_dtype"},
        Case{R"(, "nested_blocksize": 256, "nested_dtype": "float32")", "nested_offset"},
        Case{R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": "0")",
             "nested_offset"},
        Case{R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 1e200)",
             "nested_offset"}}) {
    builder.AddText("m.p.weight.quant_state.bitsandbytes__nf4", layer.State(c.extra));
    ExpectRefused(builder, kConfig, kInvalid, {"quant_state." + c.message});
  }
}

TEST(BitsandbytesTest, StorageTypeDoesNotMatter) {
  const BnbLayer layer(4, 64);
  CheckpointBuilder builder = layer.Build();
  builder.Add("m.p.weight", "BF16", {4 * 64 / 4, 1}, layer.packed);
  ExpectSameBits(LoadOnly(builder, kConfig).decoded, layer.Expected(layer.absmax));
  builder.Add("m.p.weight", "F32", {4 * 64 / 8, 1}, layer.packed);
  ExpectSameBits(LoadOnly(builder, kConfig).decoded, layer.Expected(layer.absmax));
}

TEST(BitsandbytesTest, LongerTensorsAreCutWithANotice) {
  BnbLayer layer(3, 33);
  const std::vector<float> expected = layer.Expected(layer.absmax);
  layer.packed.resize(64, 0xAA);
  layer.absmax.resize(4, 9.0f);
  const LoadedLayer loaded = LoadOnly(layer.Build(), kConfig);
  ExpectSameBits(loaded.decoded, expected);
  ASSERT_EQ(loaded.notices.size(), 1u);
  EXPECT_NE(loaded.notices[0].find("m.p.weight and 1 more"), std::string::npos)
      << loaded.notices[0];
}

TEST(BitsandbytesTest, ShorterTensorsAreRefused) {
  BnbLayer layer(3, 64);
  layer.packed.pop_back();
  ExpectRefused(layer.Build(), kConfig, kInvalid, {"weight: expected at least 96", "received 95"});
  BnbLayer scales(3, 64);
  scales.absmax.pop_back();
  ExpectRefused(scales.Build(), kConfig, kInvalid,
                {"weight.absmax: expected at least 12", "received 8"});
}

TEST(BitsandbytesTest, BiasIsKept) {
  const BnbLayer layer(3, 64);
  CheckpointBuilder builder = layer.Build();
  builder.AddFloats("m.p.bias", DType::kF16, {3}, {0.0f, 0.0f, 0.0f});
  const LoadedLayer loaded = LoadOnly(builder, kConfig);
  EXPECT_TRUE(loaded.weight.spec.has_bias);
  EXPECT_EQ(loaded.weight.spec.bias_dtype, DType::kF16);
  EXPECT_EQ(loaded.weight.bias.size(), 6u);
  builder.AddFloats("m.p.bias", DType::kF16, {4}, {0.0f, 0.0f, 0.0f, 0.0f});
  ExpectRefused(builder, kConfig, kInvalid, {"bias: expected shape [3]", "F16 [4]"});
  builder.Add("m.p.bias", "I8", {3}, std::vector<int8_t>{0, 0, 0});
  ExpectRefused(builder, kConfig, kInvalid, {"bias: expected dtype F32 or F16 or BF16"});
}

TEST(BitsandbytesTest, TableMustBeTheBuiltInOne) {
  const BnbLayer layer(1, 64);
  CheckpointBuilder builder = layer.Build();
  ExpectRefused(builder.Add("m.p.weight.quant_map", "F32", {16}, std::vector<float>(16)), kConfig,
                kInvalid, {"quant_map[0]", "nf4 table"});
  std::vector<float> map = kNf4;
  map[4] = std::nextafter(map[4], 0.0f);
  ExpectRefused(builder.Add("m.p.weight.quant_map", "F32", {16}, map), kConfig, kInvalid,
                {"quant_map[4]"});
  map[4] = std::nanf("");
  ExpectRefused(builder.Add("m.p.weight.quant_map", "F32", {16}, map), kConfig, kInvalid,
                {"quant_map[4]"});
  ExpectRefused(builder.AddFloats("m.p.weight.quant_map", DType::kF16, {16}, kNf4), kConfig,
                kInvalid, {"quant_map: expected dtype F32"});
  ExpectRefused(builder.Add("m.p.weight.quant_map", "F32", {8}, std::vector<float>(8)), kConfig,
                kInvalid, {"quant_map: expected shape [16]"});
}

TEST(BitsandbytesTest, MissingTensorsAreNamed) {
  for (const std::string suffix : {".weight", ".weight.absmax", ".weight.quant_map",
                                   ".weight.quant_state.bitsandbytes__nf4"}) {
    CheckpointBuilder builder = BnbLayer(1, 64).Build();
    builder.Remove("m.p" + suffix);
    ExpectRefused(builder, kConfig, kInvalid,
                  {"layer 'm.p'", fmt::format("tensor 'm.p{}' is missing", suffix)});
  }
  CheckpointBuilder bare;
  bare.Add("m.p.weight", "U8", {32, 1}, std::vector<uint8_t>(32));
  ExpectRefused(bare, kConfig, kInvalid, {"quant_state.bitsandbytes__nf4' is missing"});
  bare.Add("m.p.weight", "BF16", {16, 1}, std::vector<uint8_t>(32));
  ExpectRefused(bare, kConfig, kInvalid, {"quant_state.bitsandbytes__nf4' is missing"});
}

TEST(BitsandbytesTest, StateIsChecked) {
  struct Case {
    std::string state;
    std::string message;
  };
  const std::string rest = R"("blocksize":64,"dtype":"float16","shape":[1,64])";
  for (const Case& c : {
           Case{"", "quant_state"},
           Case{"[]", "expected a JSON object"},
           Case{"{\"quant_type\":", "not valid UTF-8 JSON"},
           Case{"{" + rest + "}", "quant_type"},
           Case{R"({"quant_type":"fp4",)" + rest + "}", "quant_type"},
           Case{R"({"quant_type":"nf4","quant_type":"nf4",)" + rest + "}", "appears twice"},
           Case{R"({"quant_type":"nf4","blocksize":48,"dtype":"float16","shape":[1,64]})",
                "blocksize"},
           Case{R"({"quant_type":"nf4","blocksize":64.0,"dtype":"float16","shape":[1,64]})",
                "blocksize"},
           Case{R"({"quant_type":"nf4","blocksize":64,"dtype":"float64","shape":[1,64]})", "dtype"},
           Case{R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":null})", "shape"},
           Case{R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[64]})", "shape"},
           Case{R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[0,64]})", "shape"},
           Case{R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[-1,64]})",
                "shape"},
           Case{R"({"quant_type":"nf4","blocksize":64,"dtype":"float16",)"
                R"("shape":[4611686018427387904,4611686018427387904]})",
                ""},
           Case{
               R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[1,1099511627776]})",
               "at least"},
       }) {
    CheckpointBuilder builder = BnbLayer(1, 64).Build();
    builder.AddText("m.p.weight.quant_state.bitsandbytes__nf4", c.state);
    ExpectRefused(builder, kConfig, kInvalid, {"layer 'm.p'", c.message});
  }
  CheckpointBuilder both = BnbLayer(1, 64).Build();
  both.AddText("m.p.weight.quant_state.bitsandbytes__fp4", BnbLayer(1, 64).State());
  ExpectRefused(both, kConfig, kInvalid, {"both an nf4 and an fp4"});
}

TEST(BitsandbytesTest, OneLayerDoesNotTakeAnothersTensors) {
  const BnbLayer layer(1, 64);
  CheckpointBuilder builder = layer.Build();
  builder.AddFloats("m.p.weight_extra.weight", DType::kF32, {1, 2}, {1.0f, 2.0f});
  const auto checkpoint = builder.Open(kConfig);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ((*checkpoint)->layers().size(), 2u);
  EXPECT_EQ((*checkpoint)->layers()[0].name, "m.p");
  EXPECT_EQ((*checkpoint)->layers()[1].name, "m.p.weight_extra");
}

TEST(BitsandbytesTest, CanonicalBytesAreBorrowed) {
  const BnbLayer layer(4, 64);
  const std::string bytes = layer.Build().Bytes();
  const auto view = std::as_bytes(std::span(bytes));
  const auto checkpoint = Checkpoint::FromBytes(view, nullptr, kConfig, "test");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto weight = (*checkpoint)->Load(0);
  ASSERT_TRUE(weight.ok()) << weight.status();
  for (const HostBytes& part : {weight->codes, weight->scales}) {
    EXPECT_GE(part.data(), view.data());
    EXPECT_LE(part.data() + part.size(), view.data() + view.size());
  }
}

}  // namespace
}  // namespace nibble::checkpoint
