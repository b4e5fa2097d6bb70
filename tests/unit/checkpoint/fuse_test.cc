// A fused layer decodes to exactly the rows of its parts, or is refused with the reason.
#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"
#include "tests/unit/checkpoint/random_layers.h"

namespace nibble::checkpoint {
namespace {

constexpr std::string_view kBlocks =
    R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[4,8]}})";

std::unique_ptr<Checkpoint> Open(const CheckpointBuilder& builder, std::string_view config,
                                 Fusing fusing) {
  OpenOptions options;
  options.fusing = fusing;
  auto opened = builder.Open(config, options);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return opened.ok() ? *std::move(opened) : nullptr;
}

// Rows [0, 32), [32, 64) ... of a source are those of the codes.
void ExpectSameByTiles(const CanonicalWeight& whole,
                       const absl::StatusOr<CanonicalWeight>& for_upload) {
  ASSERT_TRUE(for_upload.ok()) << for_upload.status();
  EXPECT_EQ(for_upload->spec, whole.spec);
  if (for_upload->code_source == nullptr) {
    EXPECT_TRUE(std::ranges::equal(for_upload->codes.span(), whole.codes.span()));
    return;
  }
  const CodeSource& source = *for_upload->code_source;
  EXPECT_TRUE(for_upload->codes.empty());
  EXPECT_TRUE(std::ranges::equal(source.ReadAll().span(), whole.codes.span()));
  const int64_t row_bytes = CeilDiv(whole.spec.k, 2);
  std::vector<std::byte> codes(whole.codes.size());
  for (int64_t row = 0; row < whole.spec.n; row += 32) {
    source.Read({row, std::min<int64_t>(32, whole.spec.n - row), 0, whole.spec.k},
                codes.data() + row * row_bytes, row_bytes);
  }
  EXPECT_TRUE(std::ranges::equal(codes, whole.codes.span()));
}

std::vector<float> Decode(const Checkpoint& checkpoint, const std::string& name,
                          CanonicalWeight* weight) {
  for (size_t i = 0; i < checkpoint.layers().size(); ++i) {
    if (checkpoint.layers()[i].name != name) continue;
    auto loaded = checkpoint.Load(i);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return {};
    *weight = *std::move(loaded);
    EXPECT_EQ(weight->spec, checkpoint.layers()[i].spec);
    ExpectSameByTiles(*weight, checkpoint.LoadForUpload(i));
    std::vector<float> decoded(static_cast<size_t>(weight->spec.n * weight->spec.k));
    EXPECT_TRUE(DecodeReference(*weight, 0, weight->spec.n, decoded).ok());
    return decoded;
  }
  ADD_FAILURE() << "no layer " << name;
  return {};
}

// Expects the fused layer to have the rows and biases of its parts; returns it.
CanonicalWeight ExpectFused(const CheckpointBuilder& builder, std::string_view config,
                            const std::string& fused_name, const std::vector<std::string>& parts) {
  const auto apart = Open(builder, config, Fusing::kNone);
  const auto fused = Open(builder, config, Fusing::kRequired);
  CanonicalWeight whole;
  if (apart == nullptr || fused == nullptr) return whole;
  EXPECT_EQ(fused->layers().size(), apart->layers().size() - parts.size() + 1);
  const std::vector<float> received = Decode(*fused, fused_name, &whole);
  std::vector<float> expected;
  std::vector<float> biases;
  for (const std::string& name : parts) {
    CanonicalWeight part;
    const std::vector<float> rows = Decode(*apart, name, &part);
    expected.insert(expected.end(), rows.begin(), rows.end());
    for (int64_t n = 0; n < part.spec.n; ++n) {
      biases.push_back(part.spec.has_bias ? LoadAsFloat(part.bias.data(), part.spec.bias_dtype, n)
                                          : 0.0f);
    }
  }
  ExpectSameBits(received, expected);
  for (size_t n = 0; whole.spec.has_bias && n < biases.size(); ++n) {
    EXPECT_EQ(LoadAsFloat(whole.bias.data(), whole.spec.bias_dtype, static_cast<int64_t>(n)),
              biases[n]);
  }
  return whole;
}

const std::vector<std::string> kQkv = {"a.q_proj", "a.k_proj", "a.v_proj"};

TEST(FuseTest, DenseAndBias) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.Dense("a.q_proj", 8, 6);
  layers.Dense("a.k_proj", 2, 6);
  layers.Dense("a.v_proj", 3, 6);
  layers.Dense("a.o_proj", 6, 8);
  layers.Bias("a.q_proj", 8);
  layers.Bias("a.v_proj", 3);
  const CanonicalWeight fused = ExpectFused(builder, "", "a.qkv_proj", kQkv);
  EXPECT_EQ(fused.spec.n, 13);
  EXPECT_TRUE(fused.spec.has_bias);
  layers.Bias("a.k_proj", 2, DType::kF32);
  OpenOptions options;
  options.fusing = Fusing::kRequired;
  ExpectStatus(builder.Open("", options).status(), absl::StatusCode::kUnimplemented,
               {"layer 'a.qkv_proj'", "bias", "F32", "F16", "apart without fusing"});
}

TEST(FuseTest, Bitsandbytes) {
  for (bool nested : {false, true}) {
    CheckpointBuilder builder;
    RandomLayers layers(&builder);
    layers.Nf4("m.gate_proj", 64, 48, 64, nested);  // blocks cross rows, and end with the part
    layers.Nf4("m.up_proj", 3, 48, 64, nested);
    const CanonicalWeight fused =
        ExpectFused(builder, "", "m.gate_up_proj", {"m.gate_proj", "m.up_proj"});
    EXPECT_FALSE(fused.spec.nested);
    EXPECT_EQ(fused.spec.n, 67);
  }
}

TEST(FuseTest, Int4OfEveryDialect) {
  CheckpointBuilder gptq;
  RandomLayers gptq_layers(&gptq);
  gptq_layers.Gptq("a.q_proj", 40, 32, 16);
  gptq_layers.Gptq("a.k_proj", 8, 32, 16, 0x77777777);  // symmetric beside zero points
  gptq_layers.Gptq("a.v_proj", 8, 32, 16);
  EXPECT_TRUE(ExpectFused(gptq, "", "a.qkv_proj", kQkv).spec.has_zero_points);

  CheckpointBuilder awq;
  RandomLayers awq_layers(&awq);
  for (const std::string& part : kQkv) awq_layers.Awq(part, 8, 32, 16);
  ExpectFused(awq, R"({"quantization_config":{"quant_method":"awq"}})", "a.qkv_proj", kQkv);

  CheckpointBuilder packed;
  RandomLayers packed_layers(&packed);
  packed_layers.PackQuantized("a.q_proj", 5, 30, 3, true);  // no multiple of a word of zero points
  packed_layers.PackQuantized("a.k_proj", 3, 30, 3, true);
  packed_layers.PackQuantized("a.v_proj", 4, 30, 3);
  ExpectFused(packed, "", "a.qkv_proj", kQkv);
}

TEST(FuseTest, ActOrderNeedsOneIndex) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  std::vector<int32_t> index(32);
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i % 2);
  for (const std::string& part : kQkv) {
    layers.Gptq(part, 8, 32, 16);
    builder.Add(part + ".g_idx", "I32", {32}, index);
  }
  EXPECT_TRUE(ExpectFused(builder, "", "a.qkv_proj", kQkv).spec.has_group_index);
  std::swap(index[0], index[1]);
  builder.Add("a.v_proj.g_idx", "I32", {32}, index);
  OpenOptions options;
  options.fusing = Fusing::kRequired;
  ExpectStatus(builder.Open("", options).status(), absl::StatusCode::kUnimplemented,
               {"group indices of 'a.q_proj' and 'a.v_proj' differ"});
}

TEST(FuseTest, Fp8Scales) {
  CheckpointBuilder tensor;
  RandomLayers tensor_layers(&tensor);
  tensor_layers.Fp8("m.gate_proj", 5, 8, {});
  tensor_layers.Fp8("m.up_proj", 3, 8, {1});
  tensor.AddFloats("m.gate_proj.input_scale", DType::kF32, {}, {0.5f});
  tensor.AddFloats("m.up_proj.input_scale", DType::kF32, {}, {0.25f});
  const CanonicalWeight scalars =
      ExpectFused(tensor, "", "m.gate_up_proj", {"m.gate_proj", "m.up_proj"});
  EXPECT_EQ(scalars.spec.scale_layout, ScaleLayout::kChannel);
  EXPECT_EQ(scalars.input_scale, 0.5f);

  CheckpointBuilder channel;
  RandomLayers channel_layers(&channel);
  channel_layers.Fp8("m.gate_proj", 5, 8, {5, 1});
  channel_layers.Fp8("m.up_proj", 3, 8, {1});
  ExpectFused(channel, "", "m.gate_up_proj", {"m.gate_proj", "m.up_proj"});

  CheckpointBuilder block;
  RandomLayers block_layers(&block);
  block_layers.Fp8("m.gate_proj", 8, 12, {2, 2});
  block_layers.Fp8("m.up_proj", 6, 12, {2, 2});  // the last part may be ragged
  ExpectFused(block, kBlocks, "m.gate_up_proj", {"m.gate_proj", "m.up_proj"});
}

struct Unfusable {
  std::string name;
  std::string config;
  std::vector<std::string> words;
  void (*build)(RandomLayers&, CheckpointBuilder&);
};

const Unfusable kUnfusable[] = {
    {"MissingPart",
     "",
     {"there is no 'a.v_proj'"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Dense("a.q_proj", 2, 4);
       layers.Dense("a.k_proj", 2, 4);
     }},
    {"FusedNameIsTaken",
     "",
     {"a layer of that name"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       for (const std::string& part : kQkv) layers.Dense(part, 2, 4);
       layers.Dense("a.qkv_proj", 6, 4);
     }},
    {"OnePartIsNotQuantized",
     "",
     {"format of 'a.q_proj' is int4", "dense"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Gptq("a.q_proj", 8, 32, 16);
       layers.Gptq("a.k_proj", 8, 32, 16);
       layers.Dense("a.v_proj", 8, 32);
     }},
    {"Inputs",
     "",
     {"number of inputs", "4", "6"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Dense("m.gate_proj", 2, 4);
       layers.Dense("m.up_proj", 2, 6);
     }},
    {"Types",
     "",
     {"type of 'm.gate_proj' is BF16", "F32"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Dense("m.gate_proj", 2, 4);
       layers.Dense("m.up_proj", 2, 4, DType::kF32);
     }},
    {"GroupSizes",
     "",
     {"group size", "16", "32"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Gptq("m.gate_proj", 8, 32, 16);
       layers.Gptq("m.up_proj", 8, 32, 32);
     }},
    {"PartialBlock",
     "",
     {"144 elements of 'm.gate_proj'", "block of 64"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Nf4("m.gate_proj", 3, 48, 64, false);
       layers.Nf4("m.up_proj", 4, 48, 64, false);
     }},
    {"BlockSizes",
     "",
     {"block size", "64", "128"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Nf4("m.gate_proj", 4, 64, 64, false);
       layers.Nf4("m.up_proj", 4, 64, 128, false);
     }},
    {"RaggedFp8Part",
     std::string(kBlocks),
     {"6 outputs of 'm.gate_proj'", "block of 4"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Fp8("m.gate_proj", 6, 8, {2, 1});
       layers.Fp8("m.up_proj", 8, 8, {2, 1});
     }},
    {"Fp8Layouts",
     std::string(kBlocks),
     {"laid out differently"},
     [](RandomLayers& layers, CheckpointBuilder&) {
       layers.Fp8("m.gate_proj", 8, 16, {2, 2});
       layers.Fp8("m.up_proj", 8, 16, {8, 1});
     }},
    {"OneInputScale",
     "",
     {"static input scale"},
     [](RandomLayers& layers, CheckpointBuilder& builder) {
       layers.Fp8("m.gate_proj", 4, 8, {});
       layers.Fp8("m.up_proj", 4, 8, {});
       builder.AddFloats("m.up_proj.input_scale", DType::kF32, {}, {0.5f});
     }},
};

class UnfusableTest : public ::testing::TestWithParam<Unfusable> {};

TEST_P(UnfusableTest, IsRefusedWithTheReasonOrKeptApart) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  GetParam().build(layers, builder);
  OpenOptions options;
  options.fusing = Fusing::kRequired;
  const absl::Status refused = builder.Open(GetParam().config, options).status();
  for (const std::string& word : GetParam().words) {
    ExpectStatus(refused, absl::StatusCode::kUnimplemented, {word, "cannot be fused exactly"});
  }
  const auto apart = Open(builder, GetParam().config, Fusing::kNone);
  const auto kept = Open(builder, GetParam().config, Fusing::kWherePossible);
  ASSERT_TRUE(apart != nullptr && kept != nullptr);
  EXPECT_EQ(kept->layers().size(), apart->layers().size());
  ASSERT_EQ(kept->notices().size(), apart->notices().size() + 1);
}

INSTANTIATE_TEST_SUITE_P(Reasons, UnfusableTest, ::testing::ValuesIn(kUnfusable),
                         [](const auto& unfusable) { return unfusable.param.name; });

TEST(FuseTest, WhatHasNoPartsStays) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  layers.Dense("a.q_proj", 2, 4);   // as with a compressed KV projection
  layers.Dense("m.up_proj", 2, 4);  // an MLP without a gate
  layers.Dense("b.qkv_proj", 6, 4);
  const auto fused = Open(builder, "", Fusing::kRequired);
  ASSERT_NE(fused, nullptr);
  EXPECT_EQ(fused->layers().size(), 3u);
  EXPECT_TRUE(fused->notices().empty());
}

TEST(FuseTest, LayersStaySortedByName) {
  CheckpointBuilder builder;
  RandomLayers layers(&builder);
  for (const char* name : {"a.q_proj", "a.k_proj", "a.v_proj", "a.o_proj", "z.up_proj",
                           "z.gate_proj", "b.down_proj"}) {
    layers.Dense(name, 2, 4);
  }
  const auto fused = Open(builder, "", Fusing::kRequired);
  ASSERT_NE(fused, nullptr);
  std::vector<std::string> names;
  for (const Layer& layer : fused->layers()) names.push_back(layer.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"a.o_proj", "a.qkv_proj", "b.down_proj", "z.gate_up_proj"}));
}

}  // namespace
}  // namespace nibble::checkpoint
