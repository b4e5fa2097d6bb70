// Unquantized checkpoints that a server quantizes as it loads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "nibble/quantize.h"
#include "server/checkpoint/safetensors.h"
#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

namespace fs = std::filesystem;
using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr int64_t kN = 24;
constexpr int64_t kK = 192;
constexpr char kLayer[] = "layers.0.up_proj";

// A directory with one unquantized model, "dense".
class ServerQuantizes : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "nibble_quantize_" + std::to_string(getpid());
    fs::create_directories(root_ + "/dense");
    matrix_ = RandomBF16(kN, kK, 3);
    const auto bytes = std::as_bytes(std::span(matrix_.data().data(), matrix_.data().size()));
    ASSERT_TRUE(
        checkpoint::WriteSafetensors(root_ + "/dense/model.safetensors",
                                     {{std::string(kLayer) + ".weight", "BF16", {kN, kK}, bytes},
                                      {"lm_head.weight", "BF16", {kN, kK}, bytes}},
                                     {})
            .ok());
  }
  void TearDown() override { fs::remove_all(root_); }

  // What the server must answer to Dequantize, as F32.
  std::string Expected(const WeightSpec& target, const QuantizeOptions& options = {}) const {
    const auto weight =
        Quantize(MakeConstView(matrix_.data().data(), DType::kBF16, kN, kK), target, options);
    EXPECT_TRUE(weight.ok()) << weight.status();
    std::vector<float> values(kN * kK);
    EXPECT_TRUE(DecodeReference(*weight, 0, kN, values).ok());
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  static std::string Decoded(Stubs& stubs, const std::string& name) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::DequantizeRequest request;
    request.set_weight(name);
    request.set_dtype(v1::DTYPE_F32);
    auto reader = stubs.linear->Dequantize(&context, request);
    std::string data;
    v1::DequantizeResponse chunk;
    while (reader->Read(&chunk)) data += chunk.rows().data();
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return data;
  }

  static v1::WeightSummary Describe(Stubs& stubs, const std::string& name) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::DescribeRequest request;
    request.set_name(name);
    v1::DescribeResponse response;
    const grpc::Status status = stubs.weights->Describe(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.summary();
  }

  grpc::Status LoadQuantized(Stubs& stubs, const v1::Quantization& quantize,
                             v1::LoadProgress* last = nullptr) const {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::LoadRequest request;
    request.set_name("m");
    request.set_path("dense");
    *request.mutable_quantize() = quantize;
    auto reader = stubs.weights->Load(&context, request);
    v1::LoadProgress message;
    while (reader->Read(&message)) {
      if (last != nullptr) *last = message;
    }
    return reader->Finish();
  }

  std::string root_;
  v1::Tensor matrix_;
};

WeightSpec Nf4() {
  WeightSpec spec;
  spec.format = Format::kNF4;
  return spec;
}

TEST_F(ServerQuantizes, ConfiguredModels) {
  ServerProcess server({"--model=m=" + root_ + "/dense", "--quantize=m=nf4+block=32+nested"});
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  Stubs stubs(server);
  WeightSpec target = Nf4();
  target.block_size = 32;
  target.nested = true;
  EXPECT_EQ(Decoded(stubs, std::string("m/") + kLayer), Expected(target));
  EXPECT_EQ(Describe(stubs, "m/lm_head").format().format(), v1::WEIGHT_FORMAT_DENSE);
  EXPECT_TRUE(Describe(stubs, std::string("m/") + kLayer).format().nested());
}

TEST_F(ServerQuantizes, LoadedModels) {
  ServerProcess server({"--weights-root=" + root_});
  Stubs stubs(server);
  v1::Quantization quantize;
  quantize.mutable_format()->set_format(v1::WEIGHT_FORMAT_INT4);
  quantize.mutable_format()->set_group_size(64);
  quantize.mutable_format()->set_zero_points(true);
  quantize.mutable_format()->set_search_scale(true);
  quantize.add_include("*");
  v1::LoadProgress last;
  ASSERT_TRUE(LoadQuantized(stubs, quantize, &last).ok());
  EXPECT_EQ(last.bytes_done(), 2 * (kN * kK / 2 + kN * 3 * 5));
  WeightSpec target;
  target.format = Format::kInt4;
  target.group_size = 64;
  target.has_zero_points = true;
  const std::string expected = Expected(target, {.search_scale = true});
  EXPECT_EQ(Decoded(stubs, std::string("m/") + kLayer), expected);
  EXPECT_EQ(Decoded(stubs, "m/lm_head"), expected);

  quantize.mutable_format()->set_format(v1::WEIGHT_FORMAT_DENSE);
  const grpc::Status refused = LoadQuantized(stubs, quantize);
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("quantize.format.format"));
  quantize.mutable_format()->set_format(v1::WEIGHT_FORMAT_FP8);
  quantize.mutable_format()->set_scale_layout(v1::SCALE_LAYOUT_CHANNEL);
  quantize.clear_include();
  ASSERT_TRUE(LoadQuantized(stubs, quantize).ok());
  WeightSpec fp8;
  fp8.format = Format::kFP8;
  fp8.scale_layout = ScaleLayout::kChannel;
  EXPECT_EQ(Decoded(stubs, std::string("m/") + kLayer), Expected(fp8));
  quantize.mutable_format()->set_format(v1::WEIGHT_FORMAT_NF4);
  quantize.add_exclude("*");
  ASSERT_TRUE(LoadQuantized(stubs, quantize, &last).ok());
  ASSERT_GE(last.notices_size(), 1);
  EXPECT_THAT(last.notices(last.notices_size() - 1), HasSubstr("no layer was quantized"));
}

TEST_F(ServerQuantizes, UploadedModels) {
  ServerProcess server({});
  Stubs stubs(server);
  std::ifstream file(root_ + "/dense/model.safetensors", std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  const auto upload = [&](v1::WeightFormat format) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::UploadResponse response;
    auto writer = stubs.weights->Upload(&context, &response);
    v1::UploadRequest request;
    request.mutable_header()->set_name("m");
    request.mutable_header()->set_total_bytes(static_cast<int64_t>(bytes.str().size()));
    request.mutable_header()
        ->mutable_checkpoint()
        ->mutable_quantize()
        ->mutable_format()
        ->set_format(format);
    writer->Write(request);
    request.set_chunk(bytes.str());
    writer->Write(request);
    writer->WritesDone();
    return writer->Finish();
  };
  const grpc::Status status = upload(v1::WEIGHT_FORMAT_NF4);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Decoded(stubs, std::string("m/") + kLayer), Expected(Nf4()));
  EXPECT_THAT(upload(v1::WEIGHT_FORMAT_DENSE).error_message(),
              HasSubstr("checkpoint.quantize.format.format: expected NF4"));
}

}  // namespace
}  // namespace nibble::testing
