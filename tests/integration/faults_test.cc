// Clients that die and clients that stall.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/faults_fixture.h"
#include "tests/integration/load_process.h"
#include "tests/support/raw_connection.h"

namespace nibble::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

// Long for a caller who reads, on any machine, and short for a test.
constexpr char kStall[] = "--stall-timeout-ms=300";

class Clients : public FaultsTest {
 protected:
  std::unique_ptr<grpc::ClientReader<v1::DequantizeResponse>> Dequantize(
      grpc::ClientContext& context, v1::Linear::Stub& linear) {
    v1::DequantizeRequest request;
    request.set_weight(layer());
    request.set_dtype(v1::DTYPE_F32);
    return linear.Dequantize(&context, request);
  }

  // A connection of its own that receives no more than 64 KiB ahead of its reader.
  std::shared_ptr<grpc::Channel> SlowChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetMaxReceiveMessageSize(-1);
    auto channel = grpc::CreateCustomChannel(server().data_address(),
                                             grpc::InsecureChannelCredentials(), arguments);
    AwaitConnection(*channel);
    return channel;
  }
};

TEST_F(Clients, KilledInTheMiddleOfTheirCalls) {
  Start();
  for (const char* transport : {"unary", "stream", "unary", "stream"}) {
    const std::string method = transport == std::string("unary") ? "Matmul" : "MatmulStream";
    const double before = Served(method);
    LoadProcess load(server(), layer(),
                     {"--transport", transport, "--rows", "3", "--concurrency", "16"});
    WaitUntil("the client is served", [&] { return Served(method) >= before + 50; });
    load.Kill();
    WaitUntil("its calls are over", [&] { return Inflight() == 0; });
  }
  ExpectWell();
}

TEST_F(Clients, KilledWhileTheirRequestsWait) {
  // Less than a batch waits for as long as the test lasts; five rows are a batch.
  Start({"--max-queue-delay-us=60000000", "--max-batch-rows=5"});
  for (const char* transport : {"unary", "stream"}) {
    LoadProcess load(server(), layer(),
                     {"--transport", transport, "--rows", "1", "--concurrency", "4"});
    WaitUntil("a request waits", [&] { return QueuedRows() > 0; });
    load.Kill();
    WaitUntil("the requests are dropped", [&] { return Inflight() == 0; });
  }
  ExpectWell();
}

TEST_F(Clients, ReadersWhoStopHoldUpNobody) {
  Start();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::DequantizeResponse>>> readers;
  auto linear = v1::Linear::NewStub(SlowChannel());
  constexpr int kReaders = 64;
  for (int i = 0; i < kReaders; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(Dequantize(*contexts.back(), *linear));
  }
  WaitUntil("every reader has called", [&] { return Inflight() == kReaders; });
  v1::MatmulResponse response;
  ASSERT_TRUE(Matmul(stubs(), good(), &response).ok());
  EXPECT_EQ(response.y().data(), expected());
  // One of them goes on after all.
  v1::DequantizeResponse chunk;
  int64_t rows = 0;
  while (readers.back()->Read(&chunk)) rows += chunk.rows().shape(0);
  EXPECT_TRUE(readers.back()->Finish().ok());
  EXPECT_EQ(rows, 256);
  for (const auto& context : contexts) context->TryCancel();
  for (int i = 0; i < kReaders - 1; ++i) {
    EXPECT_EQ(readers[static_cast<size_t>(i)]->Finish().error_code(), StatusCode::CANCELLED);
  }
  WaitUntil("the calls are over", [&] { return Inflight() == 0; });
  readers.clear();
  contexts.clear();
  linear.reset();
  ExpectWell();
  EXPECT_TRUE(Unload(stubs(), "m").ok());
}

TEST_F(Clients, AReaderWhoStallsLosesItsCallAndTheWeightCanGo) {
  Start({kStall});
  const auto linear = v1::Linear::NewStub(SlowChannel());
  grpc::ClientContext context;
  auto reader = Dequantize(context, *linear);
  reader->WaitForInitialMetadata();
  // Waits for the reader, and not for ever.
  v1::UnloadResponse unloaded;
  const grpc::Status status = Unload(stubs(), "m", &unloaded);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(unloaded.freed_bytes(), 0);
  v1::DequantizeResponse chunk;
  while (reader->Read(&chunk)) {
  }
  const grpc::Status ended = reader->Finish();
  EXPECT_EQ(ended.error_code(), StatusCode::DEADLINE_EXCEEDED) << ended.error_message();
  EXPECT_THAT(ended.error_message(), HasSubstr("300 ms (--stall-timeout-ms)"));
  WaitUntil("the call is counted", [&] {
    return Metric("nibble_rpc_requests_total{code=\"DEADLINE_EXCEEDED\",method=\"Dequantize\"}") ==
           1;
  });
}

TEST_F(Clients, RepliesThatNobodyTakesAreDropped) {
  // The transport takes 64 KiB on the server's side and as much on the caller's: y has 1 MiB.
  Start({kStall});
  v1::MatmulRequest request = good();
  *request.mutable_x() = Rows(good().x(), 1024);
  request.set_output_dtype(v1::DTYPE_F32);
  const auto linear = v1::Linear::NewStub(SlowChannel());
  grpc::ClientContext context;
  auto stream = linear->MatmulStream(&context);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(server().WaitForLog("event=caller_stalled"));
  v1::MatmulStreamResponse response;
  while (stream->Read(&response)) {
  }
  const grpc::Status ended = stream->Finish();
  EXPECT_EQ(ended.error_code(), StatusCode::DEADLINE_EXCEEDED) << ended.error_message();
  EXPECT_THAT(ended.error_message(), HasSubstr("--stall-timeout-ms"));
}

TEST_F(Clients, AUnaryReplyThatNobodyTakesIsDropped) {
  using namespace http2;
  Start({kStall});
  RawConnection connection(server().data_address());
  ASSERT_TRUE(connection.Send(Hello({{kInitialWindowSize, 0}}) +
                              Frame(kHeaders, kEndHeaders, 1, RequestFields(kMatmulPath)) +
                              Frame(kData, kEndStream, 1, Message(good().SerializeAsString()))));
  EXPECT_TRUE(connection.ReceiveUntil("the reply was not read for 300 ms (--stall-timeout-ms)"));
  connection.Reset();
  ExpectWell();
}

TEST_F(Clients, AnUploadThatStallsGivesBackItsShare) {
  Start({kStall, "--max-upload-bytes=1MiB", "--max-concurrent-upload-bytes=1MiB"});
  v1::UploadRequest header;
  header.mutable_header()->set_name("u");
  header.mutable_header()->set_total_bytes(1 << 20);
  header.mutable_header()->mutable_checkpoint();
  const auto upload = [&](bool stalls) {
    grpc::ClientContext context;
    v1::UploadResponse response;
    auto writer = stubs().weights->Upload(&context, &response);
    EXPECT_TRUE(writer->Write(header));
    if (!stalls) writer->WritesDone();
    return writer->Finish();
  };
  const grpc::Status stalled = upload(true);
  EXPECT_EQ(stalled.error_code(), StatusCode::DEADLINE_EXCEEDED) << stalled.error_message();
  EXPECT_THAT(stalled.error_message(), HasSubstr("no message arrived for 300 ms"));
  // The next one is refused for what it lacks, not for want of room.
  EXPECT_EQ(upload(false).error_code(), StatusCode::INVALID_ARGUMENT);
  ExpectWell();
}

TEST_F(Clients, WhatUnreadStreamsHoldIsBounded) {
  // Together 2 MiB, one caller half of it: one request of 768 KiB fits.
  Start({"--max-queue-bytes=1MiB"});
  v1::MatmulRequest request = good();
  *request.mutable_x() = Rows(good().x(), 512);
  request.set_output_dtype(v1::DTYPE_F32);
  const auto linear = v1::Linear::NewStub(SlowChannel());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<
      std::unique_ptr<grpc::ClientReaderWriter<v1::MatmulRequest, v1::MatmulStreamResponse>>>
      streams;
  constexpr int kStreams = 12;
  for (int i = 0; i < kStreams; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(linear->MatmulStream(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(request));
  }
  WaitUntil("every request has an answer", [&] {
    return Served("MatmulStream") + Metric(
                                        "nibble_rpc_requests_total{code=\"RESOURCE_EXHAUSTED\","
                                        "method=\"MatmulStream\"}") ==
           kStreams;
  });
  EXPECT_EQ(Served("MatmulStream"), 1);
  // Another caller has its own half.
  v1::MatmulResponse other;
  EXPECT_TRUE(Matmul(stubs(), good(), &other).ok());
  int served = 0;
  for (int i = 0; i < kStreams; ++i) {
    streams[static_cast<size_t>(i)]->WritesDone();
    v1::MatmulStreamResponse response;
    ASSERT_TRUE(streams[static_cast<size_t>(i)]->Read(&response));
    served += response.has_result() ? 1 : 0;
    EXPECT_TRUE(streams[static_cast<size_t>(i)]->Finish().ok());
  }
  EXPECT_EQ(served, Served("MatmulStream"));
}

}  // namespace
}  // namespace nibble::testing
