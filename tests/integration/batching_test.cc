// Concurrent callers: each gets its own rows, the bits that it would get alone; deadlines, cancels
// and the queue's bound while requests wait.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

constexpr char kModel[] = "gptq_falcon3_1b_int4";

// Holds every batch that is not full for a minute, so that what waits is under the test's control.
constexpr char kHold[] = "--max-queue-delay-us=60000000";

TEST(Batching, SixtyFourCallersGetTheirOwnRowsAndTheBitsTheyGetAlone) {
  constexpr int kCallers = 64;
  const Golden golden = ReadGolden(kModel);
  std::vector<v1::MatmulRequest> requests;
  std::vector<std::string> alone(kCallers);
  for (int i = 0; i < kCallers; ++i) {
    requests.push_back(MatmulOf(golden.layer, RandomBF16(1, golden.k, static_cast<uint32_t>(i))));
  }
  {
    ServerProcess server({"--weights-root=" + GoldenRoot()});
    Stubs stubs(server);
    ASSERT_TRUE(Load(stubs, golden.name, golden.name).ok());
    for (int i = 0; i < kCallers; ++i) {
      v1::MatmulResponse response;
      ASSERT_TRUE(Matmul(stubs, requests[static_cast<size_t>(i)], &response).ok());
      EXPECT_EQ(response.info().batch_rows(), 1);
      alone[static_cast<size_t>(i)] = response.y().data();
    }
  }
  // A batch starts when it is full, which takes all of them.
  ServerProcess server({"--weights-root=" + GoldenRoot(), kHold, "--max-batch-rows=64"});
  Stubs stubs(server);
  ASSERT_TRUE(Load(stubs, golden.name, golden.name).ok());
  std::vector<v1::MatmulResponse> responses(kCallers);
  std::vector<std::thread> callers;
  std::atomic<int> failed{0};
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      const auto at = static_cast<size_t>(i);
      if (!Matmul(stubs, requests[at], &responses[at]).ok()) ++failed;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failed, 0);
  for (int i = 0; i < kCallers; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(responses[at].y().data(), alone[at]) << "caller " << i;
    EXPECT_EQ(responses[at].info().batch_rows(), kCallers);
  }
  const std::string metrics = server.HttpGet("/metrics");
  EXPECT_EQ(Sample(metrics, "nibble_batch_rows_count{op=\"matmul\"}"), 1);
  EXPECT_EQ(Sample(metrics, "nibble_batch_rows_sum{op=\"matmul\"}"), kCallers);
}

TEST(Batching, ARequestLargerThanABatchIsSplitAndJoined) {
  const Golden golden = ReadGolden(kModel);
  ServerProcess server({"--weights-root=" + GoldenRoot(), "--max-batch-rows=16"});
  Stubs stubs(server);
  ASSERT_TRUE(Load(stubs, golden.name, golden.name).ok());
  const v1::Tensor x = RandomBF16(100, golden.k, 5);
  v1::MatmulResponse whole;
  ASSERT_TRUE(Matmul(stubs, MatmulOf(golden.layer, x), &whole).ok());
  EXPECT_EQ(whole.info().batches(), 7);
  EXPECT_EQ(whole.info().batch_rows(), 16);
  const size_t x_row = static_cast<size_t>(golden.k) * 2;
  const size_t y_row = static_cast<size_t>(golden.n) * 2;
  for (size_t row = 0; row < 100; row += 33) {
    v1::MatmulResponse one;
    const v1::Tensor x_one =
        MakeTensor(v1::DTYPE_BF16, {1, golden.k}, x.data().substr(row * x_row, x_row));
    ASSERT_TRUE(Matmul(stubs, MatmulOf(golden.layer, x_one), &one).ok());
    EXPECT_EQ(one.y().data(), whole.y().data().substr(row * y_row, y_row));
  }
}

class Held : public ::testing::Test {
 protected:
  Held()
      : golden_(ReadGolden(kModel)),
        server_({"--weights-root=" + GoldenRoot(), kHold, "--max-queue-rows=16",
                 "--max-batch-rows=16", "--drain-timeout-ms=20000"}),
        stubs_(server_) {}
  void SetUp() override { ASSERT_TRUE(Load(stubs_, golden_.name, golden_.name).ok()); }

  double Rejected(const std::string& reason) {
    return Sample(server_.HttpGet("/metrics"), "nibble_rejected_total{reason=\"" + reason + "\"}");
  }
  double QueuedRows() {
    return Sample(server_.HttpGet("/metrics"), "nibble_queue_rows{device=\"cpu:0\"}");
  }

  Golden golden_;
  ServerProcess server_;
  Stubs stubs_;
};

TEST_F(Held, ADeadlineIsAnsweredWhileTheRequestWaits) {
  // A deadline may pass before the request has reached the server; then another one is sent.
  do {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
    v1::MatmulResponse response;
    const grpc::Status status = stubs_.linear->Matmul(
        &context, MatmulOf(golden_.layer, RandomBF16(1, golden_.k, 1)), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  } while (Rejected("deadline_exceeded") < 1);
  while (QueuedRows() > 0) std::this_thread::yield();
}

TEST_F(Held, ACancelledRequestLeavesTheQueue) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::MatmulResponse response;
  grpc::Status status;
  std::thread caller([&] {
    status = stubs_.linear->Matmul(&context, MatmulOf(golden_.layer, RandomBF16(3, golden_.k, 1)),
                                   &response);
  });
  while (QueuedRows() < 3) std::this_thread::yield();
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  while (Rejected("cancelled") < 1) std::this_thread::yield();
  EXPECT_EQ(QueuedRows(), 0);
}

TEST_F(Held, AFullQueueRefusesAndTheRestIsServed) {
  v1::MatmulResponse waiting;
  grpc::Status status;
  std::thread caller([&] {
    status = Matmul(stubs_, MatmulOf(golden_.layer, RandomBF16(10, golden_.k, 1)), &waiting);
  });
  while (QueuedRows() < 10) std::this_thread::yield();
  v1::MatmulResponse response;
  const grpc::Status refused =
      Matmul(stubs_, MatmulOf(golden_.layer, RandomBF16(7, golden_.k, 2)), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find("16"), std::string::npos) << refused.error_message();
  // Exactly at the bound: accepted, and the batch is full.
  EXPECT_TRUE(Matmul(stubs_, MatmulOf(golden_.layer, RandomBF16(6, golden_.k, 3)), &response).ok());
  caller.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(waiting.info().batch_rows(), 16);
}

TEST_F(Held, ADrainFinishesWhatWaits) {
  v1::MatmulResponse response;
  grpc::Status status;
  std::thread caller([&] {
    status = Matmul(stubs_, MatmulOf(golden_.layer, RandomBF16(2, golden_.k, 1)), &response);
  });
  while (QueuedRows() < 2) std::this_thread::yield();
  server_.Signal(SIGTERM);
  caller.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(server_.ExitCode(), 0) << server_.log();
}

TEST(Batching, AFullQueueMakesRoomForTheNextCaller) {
  constexpr int kQueueRows = 60;
  constexpr char kQueued[] = "nibble_queue_rows{device=\"cpu:0\"}";
  // What is queued stays so until there are rows for a whole batch.
  ServerProcess server({"--weights-root=" + GoldenRoot(), "--max-queue-delay-us=60000000",
                        "--max-queue-rows=60", "--max-batch-rows=60"});
  Stubs flood(server);
  Stubs other(server);
  ASSERT_TRUE(Load(flood, kModel, kModel).ok());
  const Golden golden = ReadGolden(kModel);
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = flood.linear->MatmulStream(&context);
  for (int i = 0; i < kQueueRows - 1; ++i) {
    ASSERT_TRUE(stream->Write(MatmulOf(golden.layer, Rows(golden.x, 1))));
  }
  stream->WritesDone();
  while (Sample(server.HttpGet("/metrics"), kQueued) < kQueueRows - 1) std::this_thread::yield();
  v1::MatmulResponse response;
  const grpc::Status status = Matmul(other, MatmulOf(golden.layer, Rows(golden.x, 2)), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.info().batch_rows(), kQueueRows);
  int refused = 0;
  for (v1::MatmulStreamResponse reply; stream->Read(&reply);) {
    if (!reply.has_error()) continue;
    ++refused;
    EXPECT_EQ(reply.error().code(), static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  }
  EXPECT_EQ(refused, 1);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(Batching, AStreamThatIsNotReadIsHeldBack) {
  // A row of y is 256 KiB, a request's y 8 MiB: the server holds 64 MiB of one stream.
  constexpr int64_t kN = 65536;
  constexpr int kRequests = 40;
  constexpr int kMostHeld = 12;
  constexpr char kDone[] = "nibble_rpc_requests_total{code=\"OK\",method=\"MatmulStream\"}";
  ServerProcess server({});
  Stubs stubs(server);
  {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::UploadResponse response;
    auto upload = stubs.weights->Upload(&context, &response);
    v1::UploadRequest message;
    v1::UploadHeader* header = message.mutable_header();
    header->set_name("wide");
    header->set_total_bytes(kN * 4);
    header->mutable_matrix()->set_dtype(v1::DTYPE_F32);
    header->mutable_matrix()->add_shape(kN);
    header->mutable_matrix()->add_shape(1);
    header->mutable_matrix()->mutable_target()->set_format(v1::WEIGHT_FORMAT_DENSE);
    ASSERT_TRUE(upload->Write(message));
    message.set_chunk(std::string(kN * 4, '\0'));
    upload->Write(message);
    upload->WritesDone();
    const grpc::Status status = upload->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  const v1::MatmulRequest request =
      MatmulOf("wide", MakeTensor(v1::DTYPE_F32, {32, 1}, std::string(128, '\0')));
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = stubs.linear->MatmulStream(&context);
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  const auto done = [&] { return Sample(server.HttpGet("/metrics"), kDone); };
  while (done() < 8) std::this_thread::yield();
  // The two callers take turns, so what the server has read of the stream is answered meanwhile.
  for (int i = 0; i < 10; ++i) {
    v1::MatmulResponse response;
    ASSERT_TRUE(Matmul(stubs, request, &response).ok());
  }
  EXPECT_LE(done(), kMostHeld);
  int replies = 0;
  for (v1::MatmulStreamResponse reply; stream->Read(&reply); ++replies) {
    EXPECT_TRUE(reply.has_result()) << reply.error().message();
  }
  EXPECT_EQ(replies, kRequests);
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace nibble::testing
