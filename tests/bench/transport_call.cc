#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "nibble/v1/linear.grpc.pb.h"
#include "tests/bench/transport_modes.h"

namespace nibble::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStreamDepth = 8;

class Caller {
 public:
  virtual ~Caller() = default;
  // One call from request to reply; the number of bytes of the reply's payload, 0 on failure.
  virtual uint64_t Call() = 0;
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Waits for the server to listen, and not for ever for one that has ended.
void Prepare(grpc::ClientContext& context) {
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
}

uint64_t PayloadBytes(int64_t rows) { return static_cast<uint64_t>(rows * kColumns) * 2; }

v1::MatmulRequest MatmulOf(int64_t rows) {
  v1::MatmulRequest request;
  request.set_weight(kWeight);
  request.mutable_x()->set_dtype(v1::DTYPE_BF16);
  request.mutable_x()->add_shape(rows);
  request.mutable_x()->add_shape(kColumns);
  return request;
}

// The message as one slice that every call sends again.
grpc::ByteBuffer Encoded(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

class RawCaller final : public Caller {
 public:
  RawCaller(const CallOptions& options, const char* method,
            const google::protobuf::Message& request)
      : channel_(Connect(options.address)),
        method_(method, grpc::internal::RpcMethod::NORMAL_RPC, channel_),
        request_(Encoded(request)) {}
  uint64_t Call() override {
    grpc::ClientContext context;
    Prepare(context);
    grpc::ByteBuffer response;
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall(channel_.get(), method_, &context, request_, &response);
    return status.ok() ? response.Length() : 0;
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::internal::RpcMethod method_;
  grpc::ByteBuffer request_;
};

class ProtobufEcho final : public Caller {
 public:
  explicit ProtobufEcho(const CallOptions& options)
      : stub_(v1::Linear::NewStub(Connect(options.address))) {
    request_.set_payload(std::string(PayloadBytes(options.rows), 'x'));
    request_.set_response_bytes(PayloadBytes(options.rows));
  }
  uint64_t Call() override {
    grpc::ClientContext context;
    Prepare(context);
    v1::EchoResponse response;
    return stub_->Echo(&context, request_, &response).ok() ? response.payload().size() : 0;
  }

 private:
  std::unique_ptr<v1::Linear::Stub> stub_;
  v1::EchoRequest request_;
};

// One call is a reply; kStreamDepth requests are kept in flight.
class StreamCaller final : public Caller {
 public:
  explicit StreamCaller(const CallOptions& options)
      : channel_(Connect(options.address)),
        stub_(v1::Linear::NewStub(channel_)),
        request_(MatmulOf(options.rows)) {
    request_.mutable_x()->set_data(std::string(PayloadBytes(options.rows), 'x'));
    context_.set_wait_for_ready(true);
    stream_ = stub_->MatmulStream(&context_);
    for (int i = 0; i < kStreamDepth; ++i) stream_->Write(request_);
  }
  ~StreamCaller() override { context_.TryCancel(); }
  uint64_t Call() override {
    v1::MatmulStreamResponse response;
    if (!stream_->Read(&response) || !stream_->Write(request_)) return 0;
    return response.result().y().data().size();
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Linear::Stub> stub_;
  v1::MatmulRequest request_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MatmulRequest, v1::MatmulStreamResponse>> stream_;
};

// x lies in the first half of a region, y goes to the second.
class SharedCaller final : public Caller {
 public:
  explicit SharedCaller(const CallOptions& options)
      : channel_(Connect(options.address)),
        stub_(v1::Linear::NewStub(channel_)),
        bytes_(PayloadBytes(options.rows)),
        request_(MatmulOf(options.rows)) {
    attach_context_.set_wait_for_ready(true);
    attached_ = stub_->AttachMemory(&attach_context_);
    v1::AttachMemoryRequest request;
    request.set_bytes(2 * bytes_);
    v1::AttachMemoryResponse region;
    if (!attached_->Write(request) || !attached_->Read(&region)) return;
    const int fd = open(region.path().c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void* mapped = mmap(nullptr, 2 * bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) return;
    mapped_ = static_cast<char*>(mapped);
    std::fill_n(mapped_, 2 * bytes_, 'x');
    v1::SharedSlice* x = request_.mutable_x()->mutable_shared();
    x->set_region(region.region());
    x->set_length(bytes_);
    v1::SharedSlice* y = request_.mutable_y_memory();
    y->set_region(region.region());
    y->set_offset(bytes_);
    y->set_length(bytes_);
  }
  ~SharedCaller() override {
    attach_context_.TryCancel();
    if (mapped_ != nullptr) munmap(mapped_, 2 * bytes_);
  }
  uint64_t Call() override {
    if (mapped_ == nullptr) return 0;
    grpc::ClientContext context;
    Prepare(context);
    v1::MatmulResponse response;
    const grpc::Status status = stub_->Matmul(&context, request_, &response);
    return status.ok() ? response.y().shared().length() : 0;
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Linear::Stub> stub_;
  const uint64_t bytes_;
  v1::MatmulRequest request_;
  grpc::ClientContext attach_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachMemoryRequest, v1::AttachMemoryResponse>>
      attached_;
  char* mapped_ = nullptr;
};

std::unique_ptr<Caller> MakeCaller(const CallOptions& options) {
  const std::string payload(PayloadBytes(options.rows), 'x');
  if (options.mode == "protobuf") return std::make_unique<ProtobufEcho>(options);
  if (options.mode == "stream") return std::make_unique<StreamCaller>(options);
  if (options.mode == "shared") return std::make_unique<SharedCaller>(options);
  if (options.mode == "matmul") {
    v1::MatmulRequest request = MatmulOf(options.rows);
    request.mutable_x()->set_data(payload);
    return std::make_unique<RawCaller>(options, "/nibble.v1.Linear/Matmul", request);
  }
  v1::EchoRequest request;
  request.set_payload(payload);
  request.set_response_bytes(payload.size());
  return std::make_unique<RawCaller>(options, "/nibble.v1.Linear/Echo", request);
}

double Percentile(const std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(share * static_cast<double>(sorted.size())))];
}

}  // namespace

int Call(const CallOptions& options) {
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < options.clients; ++i) callers.push_back(MakeCaller(options));
  std::vector<std::vector<double>> latencies_us(callers.size());
  std::atomic<bool> failed{false};
  std::atomic<bool> measuring{false};
  std::atomic<bool> stopping{false};
  std::atomic<uint64_t> all_calls{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < callers.size(); ++i) {
    threads.emplace_back([&, i] {
      while (!stopping && !failed) {
        const auto begin = Clock::now();
        if (callers[i]->Call() < PayloadBytes(options.rows)) failed = true;
        const std::chrono::duration<double, std::micro> taken = Clock::now() - begin;
        ++all_calls;
        if (measuring && !stopping) latencies_us[i].push_back(taken.count());
      }
    });
  }
  // Connections, pools and the allocators settle first.
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds / 4));
  measuring = true;
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  stopping = true;
  const std::chrono::duration<double> elapsed = Clock::now() - begin;
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const auto& some : latencies_us) all.insert(all.end(), some.begin(), some.end());
  if (failed || all.empty()) {
    std::fprintf(stderr, "%s: a call failed\n", options.mode.c_str());
    return 1;
  }
  std::sort(all.begin(), all.end());
  std::printf(
      "{\"calls_per_s\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
      "\"all_calls\": %llu}\n",
      static_cast<double>(all.size()) / elapsed.count(), Percentile(all, 0.5),
      Percentile(all, 0.99), static_cast<unsigned long long>(all_calls));
  return 0;
}

}  // namespace nibble::bench
