// Checkpoint directories: configuration files, shards and their index.
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/unit/checkpoint/checkpoint_builder.h"

namespace nibble::checkpoint {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Dense(const std::string& prefix, float value) {
  CheckpointBuilder builder;
  return builder.AddFloats(prefix + ".weight", DType::kF32, {1, 1}, {value}).Bytes();
}

CheckpointBuilder Gptq() {
  CheckpointBuilder builder;
  builder.Add("m.p.qweight", "I32", {8, 8}, std::vector<uint32_t>(64, 0x76543210u))
      .Add("m.p.qzeros", "I32", {2, 1}, std::vector<uint32_t>(2, 0x77777777u))
      .AddFloats("m.p.scales", DType::kF16, {2, 8}, std::vector<float>(16, 1.0f));
  return builder;
}

std::string Index(std::string_view weight_map) {
  return fmt::format(R"({{"metadata":{{"total_size":1}},"weight_map":{{{}}}}})", weight_map);
}

std::vector<std::string> Names(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const Layer& layer : checkpoint.layers()) names.push_back(layer.name);
  return names;
}

float Value(const Checkpoint& checkpoint, size_t index) {
  const auto weight = checkpoint.Load(index);
  EXPECT_TRUE(weight.ok()) << weight.status();
  return weight.ok() ? LoadAsFloat(weight->codes.data(), DType::kF32, 0) : 0.0f;
}

void ExpectOpenFails(const ScratchDirectory& scratch, absl::StatusCode code,
                     std::initializer_list<std::string_view> words) {
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_FALSE(checkpoint.ok());
  ExpectStatus(checkpoint.status(), code, words);
}

TEST(DirectoryTest, AbsentOrEmpty) {
  const ScratchDirectory scratch;
  ExpectStatus(Checkpoint::Open(scratch.File("absent")).status(), absl::StatusCode::kNotFound,
               {"absent", "not a directory"});
  ExpectOpenFails(scratch, absl::StatusCode::kNotFound, {"no safetensors file"});
  scratch.Write("pytorch_model.bin", "x");
  ExpectOpenFails(scratch, absl::StatusCode::kNotFound, {"no safetensors file"});
  scratch.Write("model.gguf", "GGUF");
  ExpectOpenFails(scratch, absl::StatusCode::kUnimplemented, {"GGUF is not served"});
}

TEST(DirectoryTest, SingleFile) {
  const ScratchDirectory scratch;
  scratch.Write("model.safetensors", Dense("a", 1));
  scratch.Write("consolidated.safetensors", Dense("b", 2));
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(Names(**checkpoint), (std::vector<std::string>{"a"}));
}

TEST(DirectoryTest, OneFileOfAnotherName) {
  const ScratchDirectory scratch;
  scratch.Write("weights.safetensors", Dense("a", 1));
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ((*checkpoint)->notices().size(), 1u);
  EXPECT_NE((*checkpoint)->notices()[0].find("weights.safetensors"), std::string::npos);
  scratch.Write("more.safetensors", Dense("b", 1));
  ExpectOpenFails(scratch, kInvalid, {"2 safetensors files", "model.safetensors.index.json"});
}

TEST(DirectoryTest, BaseNameOfOlderRepositories) {
  const ScratchDirectory scratch;
  scratch.Write("gptq-4bit.safetensors", Gptq().Bytes());
  scratch.Write("other.safetensors", Dense("b", 1));
  scratch.Write("quantize_config.json",
                R"({"bits":4,"group_size":32,"model_file_base_name":"gptq-4bit"})");
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(Names(**checkpoint), (std::vector<std::string>{"m.p"}));
  scratch.Write("quantize_config.json",
                R"({"bits":4,"group_size":32,"model_file_base_name":"../gptq-4bit"})");
  ExpectOpenFails(scratch, kInvalid, {"2 safetensors files"});
}

TEST(DirectoryTest, LinkedFilesAreFollowed) {
  const ScratchDirectory scratch;
  const ScratchDirectory blobs;
  blobs.Write("blob", Dense("a", 3));
  std::filesystem::create_symlink(blobs.File("blob"), scratch.File("model.safetensors"));
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(Value(**checkpoint, 0), 3.0f);
}

TEST(DirectoryTest, IndexIsTheOnlyListOfFilesAndTensors) {
  const ScratchDirectory scratch;
  CheckpointBuilder first;
  first.AddFloats("a.weight", DType::kF32, {1, 1}, {1})
      .AddFloats("b.weight", DType::kF32, {1, 1}, {99})   // assigned to the other file
      .AddFloats("c.weight", DType::kF32, {1, 1}, {99});  // assigned to none
  scratch.Write("1.safetensors", first.Bytes());
  scratch.Write("2.safetensors", Dense("b", 2));
  scratch.Write("model.safetensors", Dense("stray", 99));
  scratch.Write("model.safetensors.index.json",
                Index(R"("a.weight":"1.safetensors","b.weight":"2.safetensors")"));
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(Names(**checkpoint), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(Value(**checkpoint, 0), 1.0f);
  EXPECT_EQ(Value(**checkpoint, 1), 2.0f);
  ASSERT_EQ((*checkpoint)->notices().size(), 1u);
  EXPECT_NE((*checkpoint)->notices()[0].find("1.safetensors"), std::string::npos);
}

TEST(DirectoryTest, CompanionsMayLieInDifferentShards) {
  const ScratchDirectory scratch;
  CheckpointBuilder codes = Gptq();
  CheckpointBuilder scales = Gptq();
  scratch.Write("1.safetensors", codes.Remove("m.p.scales").Bytes());
  scratch.Write("2.safetensors", scales.Remove("m.p.qweight").Remove("m.p.qzeros").Bytes());
  scratch.Write("model.safetensors.index.json",
                Index(R"("m.p.qweight":"1.safetensors","m.p.qzeros":"1.safetensors",)"
                      R"("m.p.scales":"2.safetensors")"));
  scratch.Write("config.json",
                R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":32}})");
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto weight = (*checkpoint)->Load(0);
  ASSERT_TRUE(weight.ok()) << weight.status();
  std::vector<float> row(64);
  ASSERT_TRUE(DecodeReference(*weight, 7, 1, row).ok());
  EXPECT_EQ(row[0], -8.0f);
  EXPECT_EQ(row[63], -1.0f);
}

TEST(DirectoryTest, FaultyIndexIsNamed) {
  const ScratchDirectory scratch;
  scratch.Write("1.safetensors", Dense("a", 1));
  struct Case {
    std::string index;
    std::string message;
  };
  for (const Case& c : {
           Case{"[]", "JSON object"},
           Case{"{}", "weight_map"},
           Case{R"({"weight_map":[]})", "weight_map"},
           Case{Index(R"("a.weight":1)"), "'a.weight': expected a file name"},
           Case{Index(R"("a.weight":"2.safetensors")"), "'2.safetensors' is missing"},
           Case{Index(R"("a.weight":"1.safetensors","b.weight":"1.safetensors")"),
                "'b.weight' is not in '1.safetensors'"},
           Case{Index(R"("a.weight":"1.safetensors","a.weight":"1.safetensors")"),
                "'a.weight' appears twice"},
           Case{Index(R"("a.weight":"../1.safetensors")"), "without a path"},
           Case{Index(R"("a.weight":"sub/1.safetensors")"), "without a path"},
           Case{Index(R"("a.weight":"sub\\1.safetensors")"), "without a path"},
           Case{Index(R"("a.weight":"/etc/passwd")"), "without a path"},
           Case{Index(R"("a.weight":"..")"), "without a path"},
           Case{Index(R"("a.weight":"1.safetensors\u0000")"), "without a path"},
           Case{"", "expected 1 to"},
           Case{Index(R"("a.weight":"")"), "without a path"},
       }) {
    scratch.Write("model.safetensors.index.json", c.index);
    ExpectOpenFails(scratch, kInvalid, {"model.safetensors.index.json", c.message});
  }
  scratch.Write("2.safetensors", "not a container");
  scratch.Write("model.safetensors.index.json", Index(R"("a.weight":"2.safetensors")"));
  ExpectOpenFails(scratch, kInvalid, {"2.safetensors", "header length"});
}

TEST(DirectoryTest, ConfigurationIsFoundInItsThreePlaces) {
  const std::string fields = R"("bits":4,"group_size":32,"sym":true)";
  for (const char* file : {"config.json", "quantize_config.json", "quant_config.json"}) {
    const ScratchDirectory scratch;
    const bool inner = std::string_view(file) == "config.json";
    // AWQ's file cannot describe GPTQ tensors unless it says so.
    scratch.Write(file, inner ? fmt::format(R"({{"quantization_config":)"
                                            R"({{"quant_method":"gptq",{}}}}})",
                                            fields)
                              : fmt::format(R"({{"quant_method":"gptq",{}}})", fields));
    scratch.Write("model.safetensors", Gptq().Bytes());
    const auto checkpoint = Checkpoint::Open(scratch.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->layers()[0].spec.group_size, 32);
  }
}

TEST(DirectoryTest, NestedTextConfigurationIsRead) {
  const ScratchDirectory scratch;
  scratch.Write("config.json", R"({"text_config":{"dtype":"bfloat16","quantization_config":)"
                               R"({"quant_method":"gptq","bits":4,"group_size":16}}})");
  scratch.Write("model.safetensors", Gptq().Bytes());
  ExpectOpenFails(scratch, kInvalid, {"scales: expected 4 groups of 16"});
}

TEST(DirectoryTest, DisagreeingConfigurationsAreRefused) {
  struct Case {
    std::string second;
    std::string field;
  };
  for (const Case& c : {Case{R"({"bits":8,"group_size":32})", "bits"},
                        Case{R"({"bits":4,"group_size":64})", "group_size"},
                        Case{R"({"bits":4,"desc_act":true})", "desc_act"},
                        Case{R"({"bits":4,"checkpoint_format":"gptq_v2"})", "checkpoint_format"}}) {
    const ScratchDirectory scratch;
    scratch.Write("config.json",
                  R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":32,)"
                  R"("desc_act":false,"checkpoint_format":"gptq"}})");
    scratch.Write("quantize_config.json", c.second);
    scratch.Write("model.safetensors", Gptq().Bytes());
    ExpectOpenFails(scratch, kInvalid, {"quantize_config.json", c.field, "disagree"});
  }
  const ScratchDirectory scratch;
  scratch.Write("config.json",
                R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":32}})");
  scratch.Write("quantize_config.json",
                R"({"bits":4,"group_size":32,"checkpoint_format":"marlin"})");
  scratch.Write("model.safetensors", Gptq().Bytes());
  ExpectOpenFails(scratch, absl::StatusCode::kUnimplemented, {"marlin"});
}

TEST(DirectoryTest, OnlyRegularFilesAreRead) {
  const ScratchDirectory scratch;
  ASSERT_EQ(mkfifo(scratch.File("config.json").c_str(), 0600), 0);
  scratch.Write("model.safetensors", Dense("a", 1));
  ExpectOpenFails(scratch, kInvalid, {"config.json", "not a regular file"});
}

}  // namespace
}  // namespace nibble::checkpoint
