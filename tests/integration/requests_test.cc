// Requests that must be refused: the named status, a message with field, expected and received, and
// a connection that goes on working.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kNF4[] = "bnb_llama_1b_nf4";
constexpr char kFP8[] = "fp8_llama_dynamic_per_channel";

class Requests : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServerProcess(
        {"--weights-root=" + GoldenRoot(), "--max-message-bytes=1MiB", "--max-upload-bytes=1MiB"});
    stubs_ = new Stubs(*server_);
    for (const char* name : {kNF4, kFP8}) {
      const grpc::Status loaded = Load(*stubs_, name, name);
      ASSERT_TRUE(loaded.ok()) << loaded.error_message();
    }
  }
  static void TearDownTestSuite() {
    delete stubs_;
    delete server_;
  }

  void SetUp() override {
    nf4_ = ReadGolden(kNF4);
    fp8_ = ReadGolden(kFP8);
    good_ = MatmulOf(nf4_.layer, nf4_.x);
  }

  // The next good request on the same connection is answered.
  void ExpectStillServing() {
    v1::MatmulResponse response;
    const grpc::Status status = Matmul(*stubs_, good_, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.y().shape(1), nf4_.n);
  }

  void ExpectRefused(const v1::MatmulRequest& request, StatusCode code,
                     const std::vector<std::string>& parts) {
    v1::MatmulResponse response;
    ExpectStatus(Matmul(*stubs_, request, &response), code, parts);
    ExpectStillServing();
  }
  static void ExpectStatus(const grpc::Status& status, StatusCode code,
                           const std::vector<std::string>& parts) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    for (const std::string& part : parts) EXPECT_THAT(status.error_message(), HasSubstr(part));
  }

  grpc::Status NormQuant(const v1::NormQuantRequest& request, v1::NormQuantResponse* response) {
    grpc::ClientContext context;
    SetDeadline(context);
    return stubs_->linear->NormQuant(&context, request, response);
  }
  grpc::Status SiluMulQuant(const v1::SiluMulQuantRequest& request,
                            v1::SiluMulQuantResponse* response) {
    grpc::ClientContext context;
    SetDeadline(context);
    return stubs_->linear->SiluMulQuant(&context, request, response);
  }

  static ServerProcess* server_;
  static Stubs* stubs_;
  Golden nf4_;
  Golden fp8_;
  v1::MatmulRequest good_;
};

ServerProcess* Requests::server_ = nullptr;
Stubs* Requests::stubs_ = nullptr;

TEST_F(Requests, UnknownWeight) {
  v1::MatmulRequest request = good_;
  request.set_weight("no/such");
  ExpectRefused(request, StatusCode::NOT_FOUND, {"no/such"});
  request.set_weight("");
  ExpectRefused(request, StatusCode::NOT_FOUND, {});
}

TEST_F(Requests, ColumnsThatDoNotMatchTheWeight) {
  v1::MatmulRequest request = good_;
  *request.mutable_x() = RandomBF16(2, 96, 1);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x.shape", "128", "96"});
}

TEST_F(Requests, BytesThatDoNotMatchTheShape) {
  v1::MatmulRequest request = good_;
  request.mutable_x()->mutable_data()->pop_back();
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x.data", "1280", "1279"});
  request.mutable_x()->clear_data();
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x.data", "1280", "received 0"});
}

TEST_F(Requests, ShapesThatLie) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{-1, 128},
                                            {-5, -128},
                                            {INT64_MAX, 128},
                                            {INT64_MAX, INT64_MAX, 128},
                                            {1 << 20, 1 << 20, 1 << 20, 128},
                                            {0, 128},
                                            {},
                                            {1, 1, 1, 1, 1, 1, 1, 5, 128}}) {
    v1::MatmulRequest request = good_;
    request.mutable_x()->clear_shape();
    for (int64_t dimension : shape) request.mutable_x()->add_shape(dimension);
    ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x."});
  }
}

TEST_F(Requests, TypesThatAreNotServed) {
  v1::MatmulRequest request = good_;
  request.mutable_x()->set_dtype(v1::DTYPE_UNSPECIFIED);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x.dtype"});
  request.mutable_x()->set_dtype(static_cast<v1::DType>(99));
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x.dtype", "99"});
  request = good_;
  request.set_output_dtype(v1::DTYPE_I8);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"output_dtype", "I8"});
  request = good_;
  *request.mutable_x() = MakeTensor(v1::DTYPE_I8, {1, 128}, std::string(128, '\1'));
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x.dtype", "I8"});
}

TEST_F(Requests, ActivationQuantizationOnlyWithFP8Weights) {
  v1::MatmulRequest request = good_;
  request.set_activation_quant(v1::QUANT_MODE_PER_TOKEN);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"activation_quant", "nf4"});
  request = MatmulOf(fp8_.layer, fp8_.x);
  request.set_activation_quant(v1::QUANT_MODE_STATIC);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"activation_quant", "input scale"});
  request.set_activation_quant(static_cast<v1::QuantMode>(7));
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"activation_quant", "7"});
}

TEST_F(Requests, ScalesOfQuantizedActivations) {
  v1::MatmulRequest request = MatmulOf(
      fp8_.layer, MakeTensor(v1::DTYPE_F8_E4M3, {3, fp8_.k}, std::string(3 * 256, '\x38')));
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x_scales", "none"});
  *request.mutable_x_scales() = MakeTensor(v1::DTYPE_F32, {2, 1}, std::string(8, '\0'));
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x_scales.shape", "[3, 1]", "[3, 2]"});
  *request.mutable_x_scales() = MakeTensor(v1::DTYPE_BF16, {3, 1}, std::string(6, '\0'));
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x_scales.dtype", "F32", "BF16"});
  request = MatmulOf(fp8_.layer, fp8_.x);
  *request.mutable_x_scales() = MakeTensor(v1::DTYPE_F32, {5, 1}, std::string(20, '\0'));
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"x_scales", "BF16"});
}

TEST_F(Requests, QuantizedActivationsAreServed) {
  // All codes 1.0; scales 2.0: y is twice the row sums of the weight, however the scales are given.
  const std::string two("\0\0\0\x40", 4);
  std::string previous;
  for (const auto& [shape, count] :
       {std::pair<std::vector<int64_t>, int>{{3, 1}, 3}, {{3}, 3}, {{3, 2}, 6}, {{1}, 1}}) {
    v1::MatmulRequest request = MatmulOf(
        fp8_.layer, MakeTensor(v1::DTYPE_F8_E4M3, {3, fp8_.k}, std::string(3 * 256, '\x38')));
    std::string scales;
    for (int i = 0; i < count; ++i) scales += two;
    *request.mutable_x_scales() = MakeTensor(v1::DTYPE_F32, shape, scales);
    v1::MatmulResponse response;
    const grpc::Status status = Matmul(*stubs_, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.y().dtype(), v1::DTYPE_BF16);
    if (!previous.empty()) {
      EXPECT_EQ(response.y().data(), previous);
    }
    previous = response.y().data();
  }
}

TEST_F(Requests, LongRequestId) {
  v1::MatmulRequest request = good_;
  request.set_request_id(std::string(129, 'x'));
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, {"request_id", "128", "129"});
}

TEST_F(Requests, NoRowsGiveAnEmptyAnswer) {
  v1::MatmulRequest request = MatmulOf(nf4_.layer, MakeTensor(v1::DTYPE_BF16, {2, 0, 128}, ""));
  v1::MatmulResponse response;
  const grpc::Status status = Matmul(*stubs_, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.y().shape_size(), 3);
  EXPECT_EQ(response.y().shape(1), 0);
  EXPECT_EQ(response.y().shape(2), nf4_.n);
  EXPECT_TRUE(response.y().data().empty());
  EXPECT_TRUE(response.info().kernel().empty());
}

TEST_F(Requests, MessagesOverTheLimit) {
  v1::MatmulRequest request = MatmulOf(nf4_.layer, RandomBF16(5000, 128, 1));
  ExpectRefused(request, StatusCode::RESOURCE_EXHAUSTED, {"1048576"});
  // The request fits, its answer of 1100 x 256 F32 would not.
  request = MatmulOf(fp8_.layer, RandomBF16(1100, fp8_.k, 1));
  request.set_output_dtype(v1::DTYPE_F32);
  ExpectRefused(request, StatusCode::RESOURCE_EXHAUSTED,
                {"y: [1100, 256] F32", "1048576", "--max-message-bytes"});
}

TEST_F(Requests, NormQuantChecksItsFields) {
  const auto expect = [&](const std::function<void(v1::NormQuantRequest&)>& spoil,
                          const std::vector<std::string>& parts) {
    v1::NormQuantRequest request;
    *request.mutable_x() = RandomBF16(2, 64, 1);
    *request.mutable_gamma_inline() = RandomBF16(1, 64, 2);
    request.mutable_quant()->set_mode(v1::QUANT_MODE_PER_TOKEN);
    v1::NormQuantResponse response;
    ASSERT_TRUE(NormQuant(request, &response).ok());
    spoil(request);
    ExpectStatus(NormQuant(request, &response), StatusCode::INVALID_ARGUMENT, parts);
    ExpectStillServing();
  };
  expect([](auto& r) { r.clear_gamma(); }, {"gamma"});
  expect([](auto& r) { *r.mutable_gamma_inline() = RandomBF16(1, 63, 2); }, {"gamma_inline", "64"});
  expect([&](auto& r) { r.set_gamma_weight(nf4_.layer); }, {"gamma_weight", "vector"});
  expect([](auto& r) { *r.mutable_residual() = RandomBF16(1, 64, 2); }, {"residual", "[2, 64]"});
  expect([](auto& r) { r.set_epsilon(-1); }, {"epsilon", "-1"});
  expect([](auto& r) { r.set_epsilon(std::numeric_limits<float>::quiet_NaN()); }, {"epsilon"});
  expect([](auto& r) { r.mutable_quant()->set_dtype(v1::DTYPE_BF16); }, {"quant.dtype", "BF16"});
  expect([](auto& r) { r.mutable_quant()->set_mode(v1::QUANT_MODE_STATIC); },
         {"quant.static_scale"});
  expect([](auto& r) { *r.mutable_x() = MakeTensor(v1::DTYPE_BF16, {0, 0}, ""); }, {"x.shape"});
}

TEST_F(Requests, SiluMulQuantChecksItsFields) {
  v1::SiluMulQuantRequest request;
  v1::SiluMulQuantResponse response;
  *request.mutable_x() = RandomBF16(2, 63, 1);
  ExpectStatus(SiluMulQuant(request, &response), StatusCode::INVALID_ARGUMENT, {"x.shape", "63"});
  *request.mutable_x() = MakeTensor(v1::DTYPE_F8_E4M3, {1, 2}, "ab");
  ExpectStatus(SiluMulQuant(request, &response), StatusCode::INVALID_ARGUMENT, {"x.dtype"});
  *request.mutable_x() = RandomBF16(2, 64, 1);
  response.Clear();
  EXPECT_TRUE(SiluMulQuant(request, &response).ok());
  EXPECT_EQ(response.y().shape(1), 32);
  ExpectStillServing();
}

TEST_F(Requests, DequantizeChecksItsRange) {
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{-1, 1},
                                     {33, 0},
                                     {0, 33},
                                     {1, INT64_MAX},
                                     {INT64_MAX, 1},
                                     {0, -1}}) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::DequantizeRequest request;
    request.set_weight(nf4_.layer);
    request.set_row_begin(begin);
    request.set_row_count(count);
    auto reader = stubs_->linear->Dequantize(&context, request);
    v1::DequantizeResponse chunk;
    EXPECT_FALSE(reader->Read(&chunk));
    ExpectStatus(reader->Finish(), StatusCode::INVALID_ARGUMENT, {"row_begin", "32"});
  }
  ExpectStillServing();
}

TEST_F(Requests, AStreamOutlivesItsBadRequests) {
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = stubs_->linear->MatmulStream(&context);
  v1::MatmulRequest bad = good_;
  bad.set_request_id("bad");
  bad.set_weight("no/such");
  v1::MatmulRequest good = good_;
  good.set_request_id("good");
  ASSERT_TRUE(stream->Write(bad));
  ASSERT_TRUE(stream->Write(good));
  stream->WritesDone();
  int bad_replies = 0;
  int good_replies = 0;
  for (v1::MatmulStreamResponse reply; stream->Read(&reply);) {
    if (reply.request_id() == "bad") {
      ++bad_replies;
      EXPECT_EQ(reply.error().code(), static_cast<int>(StatusCode::NOT_FOUND));
      EXPECT_THAT(reply.error().message(), HasSubstr("no/such"));
    } else {
      ++good_replies;
      EXPECT_EQ(reply.result().y().shape(0), 5);
    }
  }
  EXPECT_EQ(bad_replies, 1);
  EXPECT_EQ(good_replies, 1);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(Requests, ControlPlaneChecksNamesAndPaths) {
  ExpectStatus(Load(*stubs_, "m", "../golden/../../etc"), StatusCode::PERMISSION_DENIED, {"path"});
  ExpectStatus(Load(*stubs_, "m", "/etc"), StatusCode::PERMISSION_DENIED, {"path"});
  ExpectStatus(Load(*stubs_, "m", "nowhere"), StatusCode::NOT_FOUND, {"nowhere"});
  ExpectStatus(Load(*stubs_, "a b", kNF4), StatusCode::INVALID_ARGUMENT, {"name"});
  ExpectStatus(Load(*stubs_, "", kNF4), StatusCode::INVALID_ARGUMENT, {"name"});
  ExpectStatus(Load(*stubs_, "../m", kNF4), StatusCode::INVALID_ARGUMENT, {"name"});
  ExpectStatus(Unload(*stubs_, "never-loaded"), StatusCode::NOT_FOUND, {"never-loaded"});
  ExpectStillServing();
}

class Uploads : public Requests {
 protected:
  // Sends the messages and gives the final status.
  grpc::Status Upload(const std::vector<v1::UploadRequest>& messages,
                      v1::UploadResponse* response) {
    grpc::ClientContext context;
    SetDeadline(context);
    auto writer = stubs_->weights->Upload(&context, response);
    for (const v1::UploadRequest& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }
  static v1::UploadRequest MatrixHeader(const std::string& name, int64_t n, int64_t k) {
    v1::UploadRequest message;
    v1::UploadHeader* header = message.mutable_header();
    header->set_name(name);
    // Wraps for the shapes that are meant to.
    header->set_total_bytes(
        static_cast<int64_t>(static_cast<uint64_t>(n) * static_cast<uint64_t>(k) * 2));
    header->mutable_matrix()->set_dtype(v1::DTYPE_BF16);
    header->mutable_matrix()->add_shape(n);
    header->mutable_matrix()->add_shape(k);
    header->mutable_matrix()->mutable_target()->set_format(v1::WEIGHT_FORMAT_INT4);
    return message;
  }
  static v1::UploadRequest Chunk(std::string bytes) {
    v1::UploadRequest message;
    message.set_chunk(std::move(bytes));
    return message;
  }
};

TEST_F(Uploads, AMatrixIsQuantizedAndServed) {
  const std::string bytes = RandomBF16(40, 96, 3).data();
  v1::UploadResponse response;
  const grpc::Status status = Upload(
      {MatrixHeader("up/m", 40, 96), Chunk(bytes.substr(0, 1000)), Chunk(bytes.substr(1000))},
      &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.weights_size(), 1);
  EXPECT_EQ(response.weights(0), "up/m");
  v1::MatmulResponse answer;
  EXPECT_TRUE(Matmul(*stubs_, MatmulOf("up/m", RandomBF16(3, 96, 4)), &answer).ok());
  EXPECT_EQ(answer.y().shape(1), 40);
  v1::UnloadResponse unloaded;
  EXPECT_TRUE(Unload(*stubs_, "up/m", &unloaded).ok());
  EXPECT_EQ(unloaded.weights(), 1);
  EXPECT_GT(unloaded.freed_bytes(), 0);
}

TEST_F(Uploads, FaultsAreNamed) {
  v1::UploadResponse response;
  ExpectStatus(Upload({}, &response), StatusCode::INVALID_ARGUMENT, {"header"});
  ExpectStatus(Upload({Chunk("abc")}, &response), StatusCode::INVALID_ARGUMENT, {"header"});
  ExpectStatus(Upload({MatrixHeader("m", 4, 4)}, &response), StatusCode::INVALID_ARGUMENT,
               {"total_bytes", "32", "received 0"});
  ExpectStatus(Upload({MatrixHeader("m", 4, 4), Chunk(std::string(33, 'x'))}, &response),
               StatusCode::INVALID_ARGUMENT, {"total_bytes", "32", "33"});
  ExpectStatus(Upload({MatrixHeader("m", 1 << 10, 1 << 10)}, &response),
               StatusCode::RESOURCE_EXHAUSTED, {"--max-upload-bytes", "1048576", "2097152"});
  ExpectStatus(Upload({MatrixHeader("m", INT64_MAX / 2, 8)}, &response),
               StatusCode::INVALID_ARGUMENT, {});
  v1::UploadRequest garbage = MatrixHeader("m", 4, 4);
  garbage.mutable_header()->mutable_checkpoint();
  ExpectStatus(Upload({garbage, Chunk(std::string(32, '\xFF'))}, &response),
               StatusCode::INVALID_ARGUMENT, {});
  ExpectStillServing();
}

}  // namespace
}  // namespace nibble::testing
