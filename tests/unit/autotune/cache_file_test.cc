#include "server/autotune/cache_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/autotune/build_id.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

TuningCache Cache() {
  TuningCache cache;
  cache.build = "0.1.0 abc";
  TuningCache::Section& gpu = cache.devices.emplace_back();
  gpu.device = {"NVIDIA H200", BackendKind::kCuda, 132, 90, "driver 13000 runtime 13000"};
  MatmulKey key;
  key.weight.format = Format::kInt4;
  key.weight.n = 4096;
  key.weight.k = 14336;
  key.weight.has_zero_points = true;
  key.weight.scale_dtype = DType::kF16;
  key.weight.has_bias = true;
  gpu.weights.push_back(
      {key, {{1, {{"cuda_gemm", 80.5}, {"cuda_gemv", 13.25}}}, {16, {{"cuda_wgmma", 1e-3}}}}});
  key.weight.format = Format::kFP8;
  key.weight.scale_layout = ScaleLayout::kBlock;
  key.input = DType::kF8E4M3;
  key.activation = QuantMode::kPerGroup;
  gpu.weights.push_back({key, {}});
  cache.devices.push_back({{"a \"processor\"", BackendKind::kCpu, 2, 0, ""}, {}});
  return cache;
}

void ExpectEqual(const TuningCache& a, const TuningCache& b) {
  EXPECT_EQ(a.build, b.build);
  ASSERT_EQ(a.devices.size(), b.devices.size());
  for (size_t i = 0; i < a.devices.size(); ++i) {
    EXPECT_EQ(a.devices[i].device, b.devices[i].device);
    EXPECT_EQ(a.devices[i].weights, b.devices[i].weights);
  }
}

std::string FaultOf(std::string_view text) {
  return std::string(MessageOf(ParseTuningCache(text).status()));
}

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(TuningCacheTest, ReadsBackWhatItWrites) {
  const absl::StatusOr<TuningCache> read = ParseTuningCache(WriteTuningCache(Cache()));
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectEqual(*read, Cache());
  ASSERT_TRUE(ParseTuningCache(WriteTuningCache({})).ok());
}

TEST(TuningCacheTest, RefusesWhatItCannotHaveWritten) {
  const std::string good = WriteTuningCache(Cache());
  EXPECT_THAT(FaultOf(""), HasSubstr("JSON"));
  EXPECT_THAT(FaultOf("[]"), HasSubstr("object"));
  EXPECT_THAT(FaultOf("{}"), HasSubstr("file.format: expected an integer from 1 to 1"));
  EXPECT_THAT(FaultOf(good.substr(0, good.size() / 2)), HasSubstr("JSON"));
  EXPECT_THAT(FaultOf(std::string(100'000, '[')), HasSubstr("JSON"));
  EXPECT_THAT(FaultOf(std::string(size_t{17} << 20, ' ')), HasSubstr("bytes"));
  for (const auto& [from, to, fault] : std::vector<std::array<std::string_view, 3>>{
           {"\"format\":1", "\"format\":2", "format"},
           {"\"devices\":[", "\"devices\":[7,", "device: expected an object"},
           {"\"kind\":\"cuda\"", "\"kind\":\"tpu\"", "kind"},
           {"\"cores\":132", "\"cores\":-1", "cores"},
           {"\"cores\":132", "\"cores\":1e99", "cores"},
           {"\"cores\":132", "\"cores\":18446744073709551615", "cores"},
           {"\"m\":1,", "\"m\":0,", "rows.m"},
           {"\"m\":16,", "\"m\":1,", "rows.m"},
           {"\"m\":16,", "\"m\":1048577,", "rows.m"},
           {"\"cuda_gemm\":80.5", "\"cpu_gemm\":80.5", "rows.us"},
           {"\"cuda_gemm\":80.5", "\"cuda_gemm\":-1", "rows.us"},
           {"\"cuda_gemm\":80.5", "\"cuda_gemm\":0", "rows.us"},
           {"\"cuda_gemm\":80.5", "\"cuda_gemm\":1e300", "rows.us"},
           {"\"cuda_gemm\":80.5", "\"cuda_gemm\":null", "rows.us"},
           {"\"k\":14336", "\"k\":\"14336\"", "weight.k"},
           {"\"k\":14336", "\"k\":99999999999999999", "weight.k"},
           {"\"scale_dtype\":\"F16\"", "\"scale_dtype\":\"I8\"", "scale_dtype"},
           {"\"format\":\"int4\"", "\"format\":\"int5\"", "weight.format"},
           {"\"input\":\"BF16\"", "\"input\":\"BF17\"", "weights.input"},
           {"\"bias\":true", "\"bias\":1", "weight.bias"},
           {"\"scale_layout\":\"tensor\",", "", "weight.scale_layout"}}) {
    const std::string bad = Replaced(good, from, to);
    EXPECT_FALSE(ParseTuningCache(bad).ok()) << to;
    EXPECT_THAT(FaultOf(bad), HasSubstr(std::string(fault))) << to;
  }
}

TEST(TuningCacheTest, FilesAreReplacedAsAWhole) {
  const std::string directory = ::testing::TempDir() + fmt::format("/tuning-{}", getpid());
  std::filesystem::create_directory(directory);
  const std::string path = directory + "/cache.json";
  EXPECT_TRUE(absl::IsNotFound(ReadTuningFile(path).status()));
  ASSERT_TRUE(ReplaceTuningFile(path, "one").ok());
  ASSERT_TRUE(ReplaceTuningFile(path, "another").ok());
  EXPECT_EQ(ReadTuningFile(path).value(), "another");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTuningFile(directory).status()));
  EXPECT_FALSE(ReplaceTuningFile(directory + "/none/cache.json", "x").ok());
  const std::string link = directory + "/link.json";
  std::filesystem::create_symlink(path, link);
  ASSERT_TRUE(ReplaceTuningFile(link, "by a link").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadTuningFile(path).value(), "by a link");
  const std::string pipe = directory + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReplaceTuningFile(pipe, "x")));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  std::filesystem::resize_file(path, uintmax_t{1} << 30);  // sparse
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTuningFile(path).status()));
  std::filesystem::remove_all(directory);
}

TEST(BuildIdTest, BeginsWithTheVersionAndStaysTheSame) {
  EXPECT_TRUE(BuildId("1.2.3").starts_with("1.2.3"));
  EXPECT_EQ(BuildId("1.2.3"), BuildId("1.2.3"));
}

}  // namespace
}  // namespace nibble::server
