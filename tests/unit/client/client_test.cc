#include "nibble/client.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "client/cpp/src/retry.h"
#include "nibble/status.h"
#include "tests/unit/client/fake_server.h"

namespace nibble {
namespace {

using client::CallOptions;
using client::Client;
using client::ClientOptions;
using client::ServingStatus;
using std::chrono::milliseconds;
using testing::FakeServer;
using testing::FakeServerOptions;
using testing::MakeWeight;

const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "the server is draining");

v1::MatmulRequest MatmulOf(int64_t rows, int64_t k, const std::string& id = "") {
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 5) - 2.0f;
  v1::MatmulRequest request;
  request.set_weight("w");
  request.set_request_id(id);
  *request.mutable_x() = client::TensorFromFloats(x, {rows, k}, v1::DTYPE_F32).value();
  return request;
}

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override { server_.AddWeight("w", MakeWeight(7, 8)); }
  FakeServer server_;
};

TEST_F(ClientTest, MatmulReturnsTheProductAndTheId) {
  const auto client = server_.MakeClient();
  const auto reply = client->Matmul(MatmulOf(2, 8, "id-1"));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->request_id(), "id-1");
  EXPECT_EQ(reply->info().kernel(), "fake_gemm");
  const std::vector<float> y = client::FloatsFromTensor(reply->y()).value();
  ASSERT_EQ(y.size(), 14u);
  const testing::FakeWeight w = MakeWeight(7, 8);
  float expected = 0.0f;  // row 1, output 3
  for (size_t i = 0; i < 8; ++i) {
    expected += (static_cast<float>((8 + i) % 5) - 2.0f) * w.values[3 * 8 + i];
  }
  EXPECT_EQ(y[7 + 3], expected);
}

TEST_F(ClientTest, EveryCodeArrivesUnderItsNameWithItsMessage) {
  ClientOptions options = server_.Options();
  options.retry.max_attempts = 1;
  const auto client = FakeServer::MakeClient(options);
  for (int code = 1; code <= 16; ++code) {
    const std::string message = "x: message of code " + std::to_string(code);
    server_.FailNext("Matmul", {grpc::Status(static_cast<grpc::StatusCode>(code), message)});
    const auto reply = client->Matmul(MatmulOf(1, 8));
    EXPECT_EQ(static_cast<int>(reply.status().code()), code);
    EXPECT_EQ(MessageOf(reply.status()), message);
  }
}

TEST_F(ClientTest, RepeatsSafeCallsWhileTheServerIsUnavailable) {
  const auto client = server_.MakeClient();
  const std::vector<grpc::Status> twice = {kUnavailable, kUnavailable};
  for (const char* method : {"Matmul", "Dequantize", "NormQuant", "SiluMulQuant", "List",
                             "Describe", "Explain", "Check"}) {
    server_.FailNext(method, twice);
  }
  EXPECT_TRUE(client->Matmul(MatmulOf(1, 8)).ok());
  v1::DequantizeRequest dequantize;
  dequantize.set_weight("w");
  EXPECT_TRUE(client->DequantizeAll(dequantize).ok());
  v1::NormQuantRequest norm;
  *norm.mutable_x() =
      client::TensorFromFloats(std::vector<float>{1, 2}, {1, 2}, v1::DTYPE_F32).value();
  *norm.mutable_gamma_inline() = norm.x();
  EXPECT_TRUE(client->NormQuant(norm).ok());
  v1::SiluMulQuantRequest silu;
  *silu.mutable_x() = norm.x();
  EXPECT_TRUE(client->SiluMulQuant(silu).ok());
  EXPECT_TRUE(client->List({}).ok());
  v1::DescribeRequest describe;
  describe.set_name("w");
  EXPECT_TRUE(client->Describe(describe).ok());
  EXPECT_TRUE(client->Explain({}).ok());
  EXPECT_TRUE(client->CheckHealth("").ok());
  for (const char* method : {"Matmul", "Dequantize", "NormQuant", "SiluMulQuant", "List",
                             "Describe", "Explain", "Check"}) {
    EXPECT_EQ(server_.calls(method), 3) << method;
  }
}

TEST_F(ClientTest, NeverRepeatsWhatChangesTheServer) {
  const auto client = server_.MakeClient();
  for (const char* method : {"Load", "Upload", "Unload", "Watch", "MatmulStream"}) {
    server_.FailNext(method, {kUnavailable});
  }
  EXPECT_EQ(client->Load({}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->UploadCheckpoint({.name = "m"}, {}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->Unload({}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->WatchHealth("", [](ServingStatus) { return true; }).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->OpenMatmulStream()->Receive().status().code(), absl::StatusCode::kUnavailable);
  for (const char* method : {"Load", "Upload", "Unload", "Watch", "MatmulStream"}) {
    EXPECT_EQ(server_.calls(method), 1) << method;
  }
}

TEST_F(ClientTest, RepeatsOnUnavailableAloneAndNotForever) {
  const auto client = server_.MakeClient();
  server_.FailNext("Matmul", {grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full")});
  EXPECT_EQ(client->Matmul(MatmulOf(1, 8)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server_.calls("Matmul"), 1);
  server_.FailNext("Matmul", std::vector<grpc::Status>(9, kUnavailable));
  EXPECT_EQ(client->Matmul(MatmulOf(1, 8)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.calls("Matmul"), 1 + 4);
}

TEST_F(ClientTest, MakesNoAttemptWhosePausePassesTheDeadline) {
  ClientOptions options = server_.Options();
  options.retry.initial_backoff = std::chrono::hours(2);
  options.retry.max_backoff = std::chrono::hours(2);
  const auto client = FakeServer::MakeClient(options);
  server_.FailNext("Matmul", {kUnavailable});
  EXPECT_EQ(client->Matmul(MatmulOf(1, 8)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.calls("Matmul"), 1);
}

TEST_F(ClientTest, AStopRequestEndsThePause) {
  ClientOptions options = server_.Options();
  options.retry.initial_backoff = std::chrono::hours(2);
  options.retry.max_backoff = std::chrono::hours(2);
  options.deadline = milliseconds(0);
  const auto client = FakeServer::MakeClient(options);
  server_.FailNext("Matmul", {kUnavailable});
  std::stop_source stop;
  absl::Status status;
  std::thread caller(
      [&] { status = client->Matmul(MatmulOf(1, 8), {.cancel = stop.get_token()}).status(); });
  stop.request_stop();
  caller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, DequantizeIsNotRepeatedOnceRowsHaveArrived) {
  const auto client = server_.MakeClient();
  server_.FailNext("Dequantize", {grpc::Status(grpc::StatusCode::DATA_LOSS, "cut after a chunk")});
  v1::DequantizeRequest request;
  request.set_weight("w");
  int chunks = 0;
  const absl::Status status = client->Dequantize(request, [&](v1::DequantizeResponse) {
    ++chunks;
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(chunks, 1);
  EXPECT_EQ(server_.calls("Dequantize"), 1);
}

TEST_F(ClientTest, DequantizeCollectsChunksInOrder) {
  const auto client = server_.MakeClient();
  v1::DequantizeRequest request;
  request.set_weight("w");
  request.set_row_begin(2);
  request.set_row_count(5);
  request.set_dtype(v1::DTYPE_F32);
  const auto rows = client->DequantizeAll(request);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->shape(0), 5);
  EXPECT_EQ(rows->shape(1), 8);
  const testing::FakeWeight w = MakeWeight(7, 8);
  EXPECT_EQ(client::FloatsFromTensor(*rows).value(),
            std::vector<float>(w.values.begin() + 16, w.values.end()));
}

TEST_F(ClientTest, AnErrorOfTheChunkCallbackEndsDequantize) {
  const auto client = server_.MakeClient();
  v1::DequantizeRequest request;
  request.set_weight("w");
  const absl::Status status = client->Dequantize(
      request, [](v1::DequantizeResponse) { return absl::DataLossError("disk full"); });
  EXPECT_EQ(status, absl::DataLossError("disk full"));
}

TEST_F(ClientTest, TheDeadlineOfTheOptionsAndOfTheCall) {
  server_.HoldMatmul();
  ClientOptions options = server_.Options();
  options.deadline = milliseconds(30);
  const auto client = FakeServer::MakeClient(options);
  EXPECT_EQ(client->Matmul(MatmulOf(1, 8)).status().code(), absl::StatusCode::kDeadlineExceeded);
  const auto patient = server_.MakeClient();
  EXPECT_EQ(patient->Matmul(MatmulOf(1, 8), {.deadline = milliseconds(30)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, AStopRequestCancelsACallInFlight) {
  server_.HoldMatmul();
  const auto client = server_.MakeClient();
  std::stop_source stop;
  absl::Status status;
  std::thread caller(
      [&] { status = client->Matmul(MatmulOf(1, 8), {.cancel = stop.get_token()}).status(); });
  server_.WaitForHeld();
  stop.request_stop();
  caller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  server_.WaitForCancelled();
}

TEST_F(ClientTest, ACallStoppedBeforehandIsNotMade) {
  const auto client = server_.MakeClient();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(client->Matmul(MatmulOf(1, 8), {.cancel = stop.get_token()}).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, MessagesOverTheStockLimitPassUpToTheClientsOwn) {
  // 2 M floats in, 4 bytes each: over gRPC's stock 4 MiB on the way out; so is the reply of 7
  // columns.
  FakeServer roomy({.max_receive_bytes = 64 << 20});
  roomy.AddWeight("w", MakeWeight(7, 8));
  const v1::MatmulRequest request = MatmulOf(200'000, 8);
  EXPECT_TRUE(roomy.MakeClient()->Matmul(request).ok());
  ClientOptions options = roomy.Options();
  options.max_message_bytes = 1 << 20;
  EXPECT_EQ(FakeServer::MakeClient(options)->Matmul(request).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(ClientTest, TheTokenIsSentAndOnlyWhenThereIsOne) {
  EXPECT_TRUE(server_.MakeClient()->List({}).ok());
  EXPECT_EQ(server_.authorization(), "");
  ClientOptions options = server_.Options();
  options.bearer_token = "data-secret";
  const auto one = FakeServer::MakeClient(options);
  EXPECT_TRUE(one->List({}).ok());
  EXPECT_EQ(server_.authorization(), "Bearer data-secret");
  options.control_bearer_token = "control-secret";
  const auto two = FakeServer::MakeClient(options);
  EXPECT_TRUE(two->List({}).ok());
  EXPECT_EQ(server_.authorization(), "Bearer control-secret");
  EXPECT_TRUE(two->Matmul(MatmulOf(1, 8)).ok());
  EXPECT_EQ(server_.authorization(), "Bearer data-secret");
}

TEST_F(ClientTest, HealthOfTheServerAndOfAService) {
  const auto client = server_.MakeClient();
  EXPECT_EQ(client->CheckHealth("").value(), ServingStatus::kServing);
  EXPECT_EQ(client->CheckHealth("unknown", client::Plane::kControl).status().code(),
            absl::StatusCode::kNotFound);
  using Wire = grpc::health::v1::HealthCheckResponse;
  server_.SetHealth({Wire::NOT_SERVING, Wire::SERVING, Wire::NOT_SERVING});
  std::vector<ServingStatus> seen;
  const absl::Status ended = client->WatchHealth("", [&](ServingStatus status) {
    seen.push_back(status);
    return true;
  });
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(seen, (std::vector{ServingStatus::kNotServing, ServingStatus::kServing,
                               ServingStatus::kNotServing}));
  seen.clear();
  EXPECT_TRUE(client
                  ->WatchHealth("",
                                [&](ServingStatus status) {
                                  seen.push_back(status);
                                  return status != ServingStatus::kServing;
                                })
                  .ok());
  EXPECT_EQ(seen.size(), 2u);
}

TEST_F(ClientTest, LoadReportsEveryStepAndReturnsTheLast) {
  const auto client = server_.MakeClient();
  v1::LoadRequest request;
  request.set_name("m");
  request.set_path("dir");
  std::vector<int64_t> bytes;
  const auto last =
      client->Load(request, [&](const v1::LoadProgress& p) { bytes.push_back(p.bytes_done()); });
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(bytes, (std::vector<int64_t>{512, 1024}));
  EXPECT_EQ(last->notices(0), "left out: dir/lm_head");
}

TEST_F(ClientTest, WithoutAControlAddressTheControlPlaneIsRefused) {
  ClientOptions options = server_.Options();
  options.control_address.clear();
  const auto client = FakeServer::MakeClient(options);
  EXPECT_EQ(client->List({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client->Load({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client->CheckHealth("", client::Plane::kControl).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(client->Matmul(MatmulOf(1, 8)).ok());
}

TEST(ClientCreateTest, NamesWhatIsWrong) {
  const auto error = [](const ClientOptions& options) {
    const auto client = Client::Create(options);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(MessageOf(client.status()));
  };
  for (const char* address : {"", "localhost", ":1", "host:", "host:port", "host:0", "host:65536",
                              "host:123456", "unix:", "http://host:1"}) {
    EXPECT_NE(error({.address = address}).find("address: expected"), std::string::npos) << address;
  }
  EXPECT_NE(error({.max_message_bytes = 10}).find("max_message_bytes"), std::string::npos);
  EXPECT_NE(error({.tls = {.enabled = true, .ca_file = "/nonexistent/ca.pem"}}).find("tls.ca_file"),
            std::string::npos);
  EXPECT_NE(error({.tls = {.enabled = true, .cert_file = "c"}}).find("together"),
            std::string::npos);
  for (const char* address : {"[::1]:50051", "unix:/tmp/x", "dns:///host:1", "a.b:65535"}) {
    EXPECT_TRUE(Client::Create({.address = address}).ok()) << address;
  }
}

TEST(ClientCreateTest, SpeaksOverAUnixSocket) {
  char directory[] = "/tmp/nibble_client_test_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string path = std::string(directory) + "/socket";
  {
    FakeServer server({.unix_path = path});
    ClientOptions options = server.Options();
    options.address = "unix:" + path;
    EXPECT_TRUE(FakeServer::MakeClient(options)->CheckHealth("").ok());
  }
  std::filesystem::remove_all(directory);
}

TEST(ClientCreateTest, AServerThatIsNotThereIsUnavailable) {
  ClientOptions options;
  {
    FakeServer server;
    options = server.Options();
  }
  options.retry.max_attempts = 2;
  const auto reply = FakeServer::MakeClient(options)->CheckHealth("");
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
}

TEST(BackoffTest, GrowsToTheCapWithJitterBelow) {
  const client::RetryPolicy policy{
      .initial_backoff = milliseconds(100), .max_backoff = milliseconds(350), .multiplier = 2.0};
  EXPECT_EQ(client::Backoff(policy, 1, 0.0), milliseconds(50));
  EXPECT_EQ(client::Backoff(policy, 1, 1.0), milliseconds(100));
  EXPECT_EQ(client::Backoff(policy, 2, 1.0), milliseconds(200));
  EXPECT_EQ(client::Backoff(policy, 3, 1.0), milliseconds(350));
  EXPECT_EQ(client::Backoff(policy, 1000, 0.0), milliseconds(175));
}

}  // namespace
}  // namespace nibble
