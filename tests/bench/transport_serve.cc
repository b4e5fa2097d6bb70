#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "nibble/status.h"
#include "server/clock/clock.h"
#include "server/executor/operation.h"
#include "server/listener.h"
#include "server/service/linear_service.h"
#include "server/service/stall_watch.h"
#include "tests/bench/transport_modes.h"
#include "tests/support/fake_device.h"

namespace nibble::bench {
namespace {

using server::Batch;
using server::Batcher;
using server::BatchResult;
using server::Job;

// Moves the rows as a lane does, into staging memory and out of it, and computes nothing.
class InstantExecutor final : public server::BatchExecutor {
 public:
  void Run(Batch batch, std::function<void(const BatchResult&)> done) override {
    static thread_local std::vector<std::byte> staging;
    const auto row_bytes = static_cast<uint64_t>(kColumns) * 2;
    const uint64_t bytes = static_cast<uint64_t>(batch.rows) * row_bytes;
    if (staging.size() < bytes) staging.resize(bytes);
    uint64_t at = 0;
    for (const server::Piece& piece : batch.pieces) {
      const auto& job = *static_cast<const Job*>(piece.payload.get());
      const uint64_t piece_bytes = static_cast<uint64_t>(piece.rows) * row_bytes;
      job.inputs[0].data.CopyTo(static_cast<uint64_t>(piece.row_begin) * row_bytes, piece_bytes,
                                staging.data() + at);
      at += piece_bytes;
    }
    at = 0;
    for (const server::Piece& piece : batch.pieces) {
      const auto& job = *static_cast<const Job*>(piece.payload.get());
      const uint64_t piece_bytes = static_cast<uint64_t>(piece.rows) * row_bytes;
      std::copy_n(staging.data() + at, piece_bytes,
                  job.outputs[0] + static_cast<uint64_t>(piece.row_begin) * row_bytes);
      at += piece_bytes;
    }
    batch = Batch{};
    done({.kernel = "none"});
  }
};

class InstantEngine final : public server::Engine {
 public:
  explicit InstantEngine(server::Clock& clock)
      : batcher_({.batches_in_flight = 2}, clock, executor_, nullptr) {}
  Batcher& batcher(size_t) override { return batcher_; }
  size_t LeastLoadedDevice() const override { return 0; }
  void StopAccepting() override { batcher_.StopAccepting(); }
  void FailQueued(const absl::Status& status) override { batcher_.FailQueued(status); }

 private:
  InstantExecutor executor_;
  Batcher batcher_;
};

absl::Status AddWeight(server::WeightStore& store) {
  CanonicalWeight weight;
  weight.spec.n = kColumns;
  weight.spec.k = kColumns;
  weight.spec.dtype = DType::kBF16;
  weight.codes = HostBytes(std::vector<std::byte>(static_cast<size_t>(kColumns * kColumns * 2)));
  NIBBLE_ASSIGN_OR_RETURN(auto transaction, store.Begin(kWeight, {{kWeight, weight.spec}}, ""));
  NIBBLE_RETURN_IF_ERROR(transaction->Add(kWeight, weight));
  return transaction->Commit();
}

void WaitForEndOfInput() {
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
}

int ServeNibble(const ServeOptions& options) {
  const auto clock = server::CreateRealClock();
  const auto metrics = server::Metrics::Create("bench", "cpu");
  nibble::testing::FakeDevice device("cpu:0", uint64_t{1} << 30);
  server::WeightStore store({&device}, nullptr);
  InstantEngine engine(*clock);
  server::BufferPool results({}, *clock);
  server::SharedRegions regions(uint64_t{1} << 30);
  if (const absl::Status added = AddWeight(store); !added.ok()) {
    std::fprintf(stderr, "%s\n", std::string(MessageOf(added)).c_str());
    return 1;
  }
  server::StallWatch stalls(*clock, std::chrono::minutes(2));
  server::ServiceContext context{store,   engine, *clock,   *metrics, {},
                                 results, stalls, &regions, true,     uint64_t{256} << 20};
  server::LinearService service(context);
  grpc::ResourceQuota quota;
  quota.Resize(size_t{4} << 30);
  const auto listener =
      server::Listen("address", options.addresses, grpc::InsecureServerCredentials(), {&service},
                     {.quota = &quota});
  if (!listener.ok()) {
    std::fprintf(stderr, "%s\n", std::string(MessageOf(listener.status())).c_str());
    return 1;
  }
  WaitForEndOfInput();
  listener->server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

class BareEcho final : public v1::Linear::WithCallbackMethod_Echo<v1::Linear::Service> {
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const v1::EchoRequest* request,
                                 v1::EchoResponse* response) override {
    response->mutable_payload()->resize(request->response_bytes());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

int ServeBare(const ServeOptions& options) {
  BareEcho service;
  grpc::ServerBuilder builder;
  for (const std::string& address : options.addresses) {
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  }
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  WaitForEndOfInput();
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace

int Serve(const ServeOptions& options) {
  return options.mode == "bare" ? ServeBare(options) : ServeNibble(options);
}

}  // namespace nibble::bench
