// A checkpoint quantized into another directory, and read back.
#include "server/tools/quantize.h"

#include <filesystem>
#include <set>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nibble/quantize.h"
#include "nlohmann/json.hpp"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::CheckpointBuilder;
using checkpoint::ExpectStatus;
using checkpoint::ScratchDirectory;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<float> Noise(int64_t count, uint32_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values.push_back((static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f) * 0.05f);
  }
  return values;
}

// A model of two layers with what real ones have beside them.
CheckpointBuilder Model(DType dtype) {
  CheckpointBuilder builder;
  builder.AddFloats("model.embed_tokens.weight", dtype, {11, 96}, Noise(11 * 96, 1));
  builder.AddFloats("model.layers.0.mlp.down_proj.weight", dtype, {33, 160}, Noise(33 * 160, 2));
  builder.AddFloats("model.layers.0.mlp.down_proj.bias", dtype, {33}, Noise(33, 3));
  builder.AddFloats("model.layers.0.mlp.gate.weight", dtype, {4, 96}, Noise(4 * 96, 4));
  builder.AddFloats("model.layers.0.self_attn.q_proj.weight", dtype, {17, 96}, Noise(17 * 96, 5));
  builder.AddFloats("model.norm.weight", dtype, {96}, Noise(96, 6));
  builder.Add<float>("vision.patch.weight", "F32", {2, 3, 4}, Noise(24, 7));
  return builder;
}

constexpr std::string_view kConfig =
    R"({"model_type": "llama", "architectures": ["X"], "torch_dtype": "bfloat16"})";

class QuantizeCheckpointTest : public ::testing::Test {
 protected:
  void WriteModel(DType dtype = DType::kBF16) {
    fs::create_directory(In());
    scratch_.Write("in/model.safetensors", Model(dtype).Bytes());
    scratch_.Write("in/config.json", kConfig);
  }
  std::string In() const { return scratch_.File("in"); }
  std::string Out() const { return scratch_.File("out"); }
  QuantizeRequest Request(const std::string& format) const {
    QuantizeRequest request;
    request.input = In();
    request.output = Out();
    request.format = format;
    return request;
  }
  static absl::StatusOr<QuantizeReport> Run(const QuantizeRequest& request) {
    return QuantizeCheckpoint(request, [](int64_t, int64_t, const std::string&) {});
  }
  nlohmann::json OutputJson(const std::string& name) const {
    std::ifstream file(Out() + "/" + name);
    return nlohmann::json::parse(file);
  }
  // Names in the scratch directory.
  std::set<std::string> Entries() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(scratch_.path())) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  ScratchDirectory scratch_;
};

std::vector<float> Decoded(const CanonicalWeight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.spec.n * weight.spec.k));
  EXPECT_TRUE(DecodeReference(weight, 0, weight.spec.n, values).ok());
  return values;
}

TEST_F(QuantizeCheckpointTest, TheOutputLoadsToTheBitsOfQuantize) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    fs::remove_all(In());
    WriteModel(dtype);
    for (const char* format :
         {"nf4", "nf4+block=32+nested", "fp4+block=128", "fp4+nested", "int4+group=32",
          "int4+group=32+zero-points", "int4+group=16+search", "int4+group=-1",
          "int4+group=-1+zero-points", "fp8", "fp8+channel", "fp8+block"}) {
      SCOPED_TRACE(fmt::format("{} {}", DTypeName(dtype), format));
      QuantizeRequest request = Request(format);
      request.force = true;
      const auto report = Run(request);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->layers.size(), 2u);
      EXPECT_THAT(report->notices, IsEmpty());

      const auto source = Checkpoint::Open(In());
      const auto output = Checkpoint::Open(Out());
      ASSERT_TRUE(output.ok()) << output.status();
      ASSERT_EQ((*output)->layers().size(), (*source)->layers().size());
      const auto target = ParseQuantizeTarget(format);
      for (size_t i = 0; i < (*output)->layers().size(); ++i) {
        const checkpoint::Layer& layer = (*output)->layers()[i];
        SCOPED_TRACE(layer.name);
        const CanonicalWeight dense = (*source)->Load(i).value();
        const CanonicalWeight loaded = (*output)->Load(i).value();
        if (loaded.spec.format == Format::kDense) {
          EXPECT_TRUE(std::ranges::equal(loaded.codes.span(), dense.codes.span()));
          continue;
        }
        WeightSpec spec = SpecFor(*target, dense.spec.n, dense.spec.k, dtype);
        spec.scale_dtype = dtype;
        const auto expected =
            Quantize(MakeConstView(dense.codes.data(), dtype, dense.spec.n, dense.spec.k), spec,
                     target->options);
        ASSERT_TRUE(expected.ok());
        // Without a type of its own, FP8 takes the configuration's.
        if (loaded.spec.format != Format::kFP8) {
          EXPECT_EQ(loaded.spec.dtype, dtype);
        }
        checkpoint::ExpectSameBits(Decoded(loaded), Decoded(*expected));
        EXPECT_TRUE(std::ranges::equal(loaded.bias.span(), dense.bias.span()));
      }
    }
  }
}

TEST_F(QuantizeCheckpointTest, HeadsRoutersVectorsAndOtherTensorsAreCopied) {
  WriteModel();
  const auto report = Run(Request("nf4"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->kept, ElementsAre("model.layers.0.mlp.gate", "lm_head"));
  EXPECT_EQ(report->copied_tensors, 5);
  EXPECT_EQ(
      report->bytes_after,
      report->bytes_before - 2 * (33 * 160 + 17 * 96) + 33 * 80 + 4 * 83 + 17 * 48 + 4 * 26 +
          2 * 64 +
          static_cast<int64_t>(
              std::string(
                  R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [33, 160]})")
                      .size() *
                  2 -
              1));
  const auto file = checkpoint::SafetensorsFile::Open(Out() + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  const auto source = checkpoint::SafetensorsFile::Open(In() + "/model.safetensors");
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "vision.patch.weight",
                           "model.layers.0.mlp.gate.weight", "model.layers.0.mlp.down_proj.bias"}) {
    ASSERT_NE(file->Find(name), nullptr) << name;
    EXPECT_EQ(file->Find(name)->dtype, source->Find(name)->dtype);
    EXPECT_EQ(file->Find(name)->shape, source->Find(name)->shape);
    EXPECT_TRUE(std::ranges::equal(file->Find(name)->data, source->Find(name)->data)) << name;
  }
}

TEST_F(QuantizeCheckpointTest, PatternsChooseTheLayers) {
  WriteModel();
  QuantizeRequest request = Request("int4+group=32");
  request.include = {"*gate", "*_proj"};
  request.exclude = {"*.self_attn.*"};
  const auto report = Run(request);
  ASSERT_TRUE(report.ok()) << report.status();
  std::vector<std::string> names;
  for (const LayerReport& layer : report->layers) names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate"));
  EXPECT_THAT(OutputJson("config.json")["quantization_config"]["ignore"],
              ElementsAre("model.layers.0.self_attn.q_proj", "lm_head"));
}

TEST_F(QuantizeCheckpointTest, TheConfigurationSaysWhatWasDone) {
  WriteModel();
  QuantizeRequest request = Request("fp4+nested");
  ASSERT_TRUE(Run(request).ok());
  nlohmann::json config = OutputJson("config.json");
  EXPECT_EQ(config["model_type"], "llama");
  config = config["quantization_config"];
  EXPECT_EQ(config["quant_method"], "bitsandbytes");
  EXPECT_EQ(config["bnb_4bit_quant_type"], "fp4");
  EXPECT_EQ(config["bnb_4bit_use_double_quant"], true);
  EXPECT_EQ(config["bnb_4bit_compute_dtype"], "bfloat16");
  request.force = true;
  request.format = "int4+group=-1+zero-points";
  ASSERT_TRUE(Run(request).ok());
  config = OutputJson("config.json")["quantization_config"];
  EXPECT_EQ(config["format"], "pack-quantized");
  const auto& weights = config["config_groups"]["group_0"]["weights"];
  EXPECT_EQ(weights["strategy"], "channel");
  EXPECT_EQ(weights["symmetric"], false);
  request.format = "fp8+block";
  ASSERT_TRUE(Run(request).ok());
  config = OutputJson("config.json")["quantization_config"];
  EXPECT_EQ(config["format"], "float-quantized");
  EXPECT_THAT(config["config_groups"]["group_0"]["weights"]["block_structure"],
              ElementsAre(128, 128));
}

TEST_F(QuantizeCheckpointTest, ALayerThatTheDialectCannotHoldIsKept) {
  WriteModel();
  const auto report = Run(Request("int4+group=64"));  // 160 and 96 inputs
  ExpectStatus(report.status(), kInvalid, {"expected a linear layer", "found none"});
  QuantizeRequest request = Request("int4+group=80");
  const auto kept = Run(request);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->layers.size(), 1u);
  EXPECT_THAT(kept->notices, ElementsAre("model.layers.0.self_attn.q_proj is not quantized: its 96 "
                                         "inputs are no multiple of the group of 80"));
  EXPECT_THAT(OutputJson("config.json")["quantization_config"]["ignore"],
              Contains("model.layers.0.self_attn.q_proj"));
}

TEST_F(QuantizeCheckpointTest, ShardsAreReadAndWritten) {
  WriteModel();
  QuantizeRequest request = Request("nf4");
  request.max_shard_bytes = 2000;
  const auto report = Run(request);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->files.size(), 2u);
  const nlohmann::json index = OutputJson("model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], report->bytes_after);
  std::set<std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) files.insert(file);
  EXPECT_EQ(files, std::set<std::string>(report->files.begin(), report->files.end()));
  EXPECT_EQ(report->files[0], fmt::format("model-00001-of-{:05}.safetensors", files.size()));
  const auto output = Checkpoint::Open(Out());
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ((*output)->layers().size(), 4u);

  // Shards in, one file out.
  for (const auto& entry : fs::directory_iterator(Out())) EXPECT_TRUE(entry.is_regular_file());
  fs::remove_all(In());
  fs::create_directory(In());
  CheckpointBuilder first = Model(DType::kBF16), second = Model(DType::kBF16);
  nlohmann::json map;
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"}) {
    first.Remove(name);
    map[name] = "two.safetensors";
  }
  for (const char* name :
       {"model.layers.0.mlp.down_proj.bias", "model.layers.0.mlp.gate.weight",
        "model.layers.0.self_attn.q_proj.weight", "model.norm.weight", "vision.patch.weight"}) {
    second.Remove(name);
    map[name] = "one.safetensors";
  }
  scratch_.Write("in/one.safetensors", first.Bytes());
  scratch_.Write("in/two.safetensors", second.Bytes());
  scratch_.Write("in/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  QuantizeRequest whole = Request("nf4");
  whole.output = scratch_.File("whole");
  const auto joined = Run(whole);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_THAT(joined->files, ElementsAre("model.safetensors"));
  EXPECT_EQ(joined->bytes_after, report->bytes_after);
  EXPECT_FALSE(fs::exists(scratch_.File("whole/model.safetensors.index.json")));
  EXPECT_EQ(OutputJson("config.json")["model_type"], "llama");
}

TEST_F(QuantizeCheckpointTest, ErrorsAreThoseOfTheDecodedWeights) {
  WriteModel(DType::kF32);
  const auto report = Run(Request("int4+group=32"));
  ASSERT_TRUE(report.ok()) << report.status();
  const auto source = Checkpoint::Open(In());
  const auto output = Checkpoint::Open(Out());
  const auto original = Decoded((*source)->Load(0).value());
  const auto decoded = Decoded((*output)->Load(0).value());
  double difference = 0, norm = 0, largest = 0;
  for (size_t i = 0; i < original.size(); ++i) {
    const double error = static_cast<double>(decoded[i]) - original[i];
    difference += error * error;
    norm += static_cast<double>(original[i]) * original[i];
    largest = std::max(largest, std::fabs(error));
  }
  EXPECT_EQ(report->layers[0].name, "model.layers.0.mlp.down_proj");
  EXPECT_NEAR(report->layers[0].relative_error, std::sqrt(difference / norm), 1e-9);
  EXPECT_EQ(report->layers[0].max_error, largest);
  EXPECT_GT(report->layers[0].relative_error, 0.01);
  EXPECT_LT(report->layers[0].relative_error, 0.2);
}

TEST_F(QuantizeCheckpointTest, ProgressCoversAllBytes) {
  WriteModel();
  std::vector<int64_t> done;
  std::vector<std::string> layers;
  int64_t total = 0;
  ASSERT_TRUE(
      QuantizeCheckpoint(Request("fp8"), [&](int64_t at, int64_t all, const std::string& layer) {
        done.push_back(at);
        total = all;
        if (!layer.empty()) layers.push_back(layer);
      }).ok());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.front(), 0);
  EXPECT_LT(done.back(), total);
  EXPECT_EQ(layers.size(), 2u);
}

TEST_F(QuantizeCheckpointTest, AFaultLeavesNothingBehind) {
  WriteModel();
  CheckpointBuilder builder = Model(DType::kF32);
  std::vector<float> values(17 * 96, 1.0f);
  values[200] = NAN;
  builder.AddFloats("model.layers.0.self_attn.q_proj.weight", DType::kF32, {17, 96}, values);
  scratch_.Write("in/model.safetensors", builder.Bytes());
  ExpectStatus(Run(Request("nf4")).status(), kInvalid,
               {"layer 'model.layers.0.self_attn.q_proj'", "matrix[2, 8]", "nan"});
  EXPECT_THAT(Entries(), ElementsAre("in"));
}

TEST_F(QuantizeCheckpointTest, WhatCannotBeDoneIsSaid) {
  ExpectStatus(Run(Request("nf4")).status(), absl::StatusCode::kNotFound, {"not a directory"});
  WriteModel();
  ExpectStatus(Run(Request("nf5")).status(), kInvalid, {"format: expected nf4"});
  QuantizeRequest request = Request("nf4");
  request.max_shard_bytes = 0;
  ExpectStatus(Run(request).status(), kInvalid, {"max_shard_bytes"});
  request = Request("nf4");
  request.exclude = {"*"};
  ExpectStatus(Run(request).status(), kInvalid, {"found none"});
  ASSERT_TRUE(Run(Request("nf4")).ok());
  request = Request("nf4");
  request.input = Out();
  request.output = scratch_.File("again");
  ExpectStatus(Run(request).status(), kInvalid, {"unquantized", "bitsandbytes"});
  // Without the configuration the tensors tell.
  fs::remove(Out() + "/config.json");
  ExpectStatus(Run(request).status(), kInvalid, {"unquantized", "nf4 33x160"});
  EXPECT_THAT(Entries(), ElementsAre("in", "out"));
}

TEST_F(QuantizeCheckpointTest, WithoutAConfigurationOneIsMade) {
  WriteModel();
  fs::remove(In() + "/config.json");
  ASSERT_TRUE(Run(Request("fp8+block")).ok());
  EXPECT_EQ(OutputJson("config.json").size(), 1u);
  EXPECT_TRUE(Checkpoint::Open(Out()).ok());
}

}  // namespace
}  // namespace nibble::tools
