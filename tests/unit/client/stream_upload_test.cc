#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "nibble/client.h"
#include "nibble/status.h"
#include "tests/unit/client/fake_server.h"

namespace nibble {
namespace {

using client::CheckpointUploadOptions;
using client::ClientOptions;
using client::MatrixUploadOptions;
using testing::FakeServer;
using testing::MakeWeight;

v1::MatmulRequest RequestOf(const std::string& weight, const std::string& id) {
  v1::MatmulRequest request;
  request.set_weight(weight);
  request.set_request_id(id);
  *request.mutable_x() =
      client::TensorFromFloats(std::vector<float>{1, 2, 3, 4}, {1, 4}, v1::DTYPE_F32).value();
  return request;
}

TEST(MatmulStreamTest, ManyInFlightFromTwoThreads) {
  FakeServer server;
  server.AddWeight("w", MakeWeight(3, 4));
  const auto client = server.MakeClient();
  const auto stream = client->OpenMatmulStream();
  constexpr int kRequests = 200;
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(stream->Send(RequestOf("w", std::to_string(i))).ok());
    }
    ASSERT_TRUE(stream->Close().ok());
  });
  std::set<std::string> ids;
  for (;;) {
    const auto reply = stream->Receive();
    ASSERT_TRUE(reply.ok()) << reply.status();
    if (!reply->has_value()) break;
    ASSERT_TRUE((*reply)->has_result());
    ids.insert((*reply)->request_id());
  }
  sender.join();
  EXPECT_EQ(ids.size(), static_cast<size_t>(kRequests));
}

TEST(MatmulStreamTest, RepliesComeInTheServersOrder) {
  FakeServer server;
  server.AddWeight("w", MakeWeight(3, 4));
  server.SetReplyOrderReversed();
  const auto client = server.MakeClient();
  const auto stream = client->OpenMatmulStream();
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(stream->Send(RequestOf("w", id)).ok());
  ASSERT_TRUE(stream->Close().ok());
  std::string order;
  for (int i = 0; i < 3; ++i) order += stream->Receive().value()->request_id();
  EXPECT_EQ(order, "cba");
  EXPECT_FALSE(stream->Receive().value().has_value());
  EXPECT_FALSE(stream->Receive().value().has_value());
}

TEST(MatmulStreamTest, ARequestThatFailsIsAReplyAndTheStreamGoesOn) {
  FakeServer server;
  server.AddWeight("w", MakeWeight(3, 4));
  const auto client = server.MakeClient();
  const auto stream = client->OpenMatmulStream();
  ASSERT_TRUE(stream->Send(RequestOf("none", "bad")).ok());
  ASSERT_TRUE(stream->Send(RequestOf("w", "good")).ok());
  const auto bad = stream->Receive().value();
  EXPECT_EQ(bad->error().code(), 5);
  EXPECT_EQ(bad->error().message(), "weight: no weight named \"none\"");
  EXPECT_TRUE(stream->Receive().value()->has_result());
}

TEST(MatmulStreamTest, SendAfterCloseIsRefused) {
  FakeServer server;
  const auto client = server.MakeClient();
  const auto stream = client->OpenMatmulStream();
  EXPECT_TRUE(stream->Close().ok());
  EXPECT_TRUE(stream->Close().ok());
  EXPECT_EQ(stream->Send(RequestOf("w", "")).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(MatmulStreamTest, CancelEndsABlockedReceive) {
  FakeServer server;
  const auto client = server.MakeClient();
  const auto stream = client->OpenMatmulStream();
  absl::Status status;
  std::thread receiver([&] { status = stream->Receive().status(); });
  stream->Cancel();
  receiver.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST(MatmulStreamTest, ARefusedStreamSaysWhyInReceive) {
  FakeServer server;
  server.FailNext("MatmulStream", {grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no token")});
  const auto client = server.MakeClient();
  const auto stream = client->OpenMatmulStream();
  absl::Status sent;
  while (sent.ok()) sent = stream->Send(RequestOf("w", ""));
  EXPECT_EQ(sent.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Receive().status(), absl::UnauthenticatedError("no token"));
}

TEST(MatmulStreamTest, DestructionWithRepliesOutstandingEndsTheCall) {
  FakeServer server;
  server.AddWeight("w", MakeWeight(3, 4));
  const auto client = server.MakeClient();
  {
    const auto stream = client->OpenMatmulStream();
    ASSERT_TRUE(stream->Send(RequestOf("w", "a")).ok());
  }
  EXPECT_TRUE(client->Matmul(RequestOf("w", "b")).ok());
}

class UploadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/nibble_upload_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    for (int i = 0; i < 2500; ++i) content_.push_back(static_cast<char>(i * 7));
    std::ofstream(directory_ + "/file", std::ios::binary) << content_;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<client::Client> MakeClient() {
    ClientOptions options = server_.Options();
    options.upload_chunk_bytes = 1000;
    return FakeServer::MakeClient(options);
  }
  std::span<const std::byte> content() const {
    return std::as_bytes(std::span(content_.data(), content_.size()));
  }

  FakeServer server_;
  std::string directory_;
  std::string content_;
};

const std::vector<int64_t> kChunks = {1000, 1000, 500};

TEST_F(UploadTest, CheckpointFromMemoryInChunksWithProgress) {
  std::vector<std::pair<int64_t, int64_t>> progress;
  const auto reply = MakeClient()->UploadCheckpoint(
      {.name = "m", .device = "cpu:1", .config_json = "{}"}, content(),
      [&](int64_t done, int64_t total) { progress.emplace_back(done, total); });
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->weights(0), "m");
  ASSERT_EQ(server_.uploads().size(), 1u);
  const testing::ReceivedUpload upload = server_.uploads()[0];
  EXPECT_EQ(upload.header.device(), "cpu:1");
  EXPECT_EQ(upload.header.total_bytes(), 2500);
  EXPECT_EQ(upload.header.checkpoint().config_json(), "{}");
  EXPECT_EQ(upload.chunk_bytes, kChunks);
  EXPECT_EQ(upload.bytes, content_);
  EXPECT_EQ(progress,
            (std::vector<std::pair<int64_t, int64_t>>{{1000, 2500}, {2000, 2500}, {2500, 2500}}));
}

TEST_F(UploadTest, CheckpointFromAFile) {
  ASSERT_TRUE(MakeClient()->UploadCheckpointFile({.name = "m"}, directory_ + "/file").ok());
  ASSERT_EQ(server_.uploads().size(), 1u);
  EXPECT_EQ(server_.uploads()[0].chunk_bytes, kChunks);
  EXPECT_EQ(server_.uploads()[0].bytes, content_);
}

TEST_F(UploadTest, AFileThatCannotBeReadIsNamedAndNothingIsSent) {
  const auto client = MakeClient();
  for (const std::string& path : {directory_ + "/none", directory_}) {
    const auto reply = client->UploadCheckpointFile({.name = "m"}, path);
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(MessageOf(reply.status()).find(path), std::string::npos);
  }
  EXPECT_EQ(server_.calls("Upload"), 0);
}

TEST_F(UploadTest, MatrixFromMemoryAndFromAFile) {
  MatrixUploadOptions upload;
  upload.name = "w";
  upload.dtype = v1::DTYPE_BF16;
  upload.shape = {25, 50};
  upload.target.set_format(v1::WEIGHT_FORMAT_NF4);
  upload.target.set_nested(true);
  const auto client = MakeClient();
  ASSERT_TRUE(client->UploadMatrix(upload, content()).ok());
  ASSERT_TRUE(client->UploadMatrixFile(upload, directory_ + "/file").ok());
  ASSERT_EQ(server_.uploads().size(), 2u);
  for (const testing::ReceivedUpload& received : server_.uploads()) {
    EXPECT_EQ(received.header.matrix().dtype(), v1::DTYPE_BF16);
    EXPECT_EQ(received.header.matrix().shape(1), 50);
    EXPECT_TRUE(received.header.matrix().target().nested());
    EXPECT_EQ(received.bytes, content_);
  }
}

TEST_F(UploadTest, AMatrixOfAnotherSizeOrTypeIsRefusedHere) {
  const auto client = MakeClient();
  MatrixUploadOptions upload;
  upload.dtype = v1::DTYPE_BF16;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {25, 51}, {-25, -50}, {int64_t{1} << 40, int64_t{1} << 40}}) {
    upload.shape = shape;
    EXPECT_EQ(client->UploadMatrix(upload, content()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  upload.shape = {25, 100};
  upload.dtype = v1::DTYPE_I8;
  EXPECT_EQ(client->UploadMatrix(upload, content()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server_.calls("Upload"), 0);
}

TEST_F(UploadTest, ARefusalInTheMiddleKeepsTheServersReason) {
  server_.FailNext("Upload",
                   {grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "total_bytes: too many")});
  const std::string large(32 << 20, 'x');
  const auto reply = server_.MakeClient()->UploadCheckpoint(
      {.name = "m"}, std::as_bytes(std::span(large.data(), large.size())));
  EXPECT_EQ(reply.status(), absl::ResourceExhaustedError("total_bytes: too many"));
}

TEST_F(UploadTest, AChunkIsNeverLargerThanAMessage) {
  ClientOptions options = server_.Options();
  options.max_message_bytes = 4096;
  const auto client = FakeServer::MakeClient(options);
  const std::string large(10000, 'x');
  ASSERT_TRUE(
      client->UploadCheckpoint({.name = "m"}, std::as_bytes(std::span(large.data(), large.size())))
          .ok());
  EXPECT_EQ(server_.uploads()[0].chunk_bytes, (std::vector<int64_t>{4032, 4032, 1936}));
}

}  // namespace
}  // namespace nibble
