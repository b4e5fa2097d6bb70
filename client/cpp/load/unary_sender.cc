#include <mutex>
#include <optional>

#include "client/cpp/load/connections.h"
#include "client/cpp/load/senders.h"

namespace nibble::load {
namespace {

class UnaryExchange final : public Exchange {
 public:
  UnaryExchange(size_t number, Stub& connection) : Exchange(number), stub(connection) {}

  Stub& stub;
  std::optional<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
  bool in_flight = false;  // guarded by the sender's mutex, as the context is while this is set
};

class UnarySender final : public Sender {
 public:
  UnarySender(SenderOptions options, std::vector<std::unique_ptr<Stub>> stubs,
              const Operation& operation)
      : options_(std::move(options)),
        stubs_(std::move(stubs)),
        operation_(operation),
        method_(operation.method()) {}

  ~UnarySender() override {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  std::unique_ptr<Exchange> MakeExchange(size_t number) override {
    std::lock_guard lock(mutex_);
    auto made = std::make_unique<UnaryExchange>(number, *stubs_[exchanges_.size() % stubs_.size()]);
    exchanges_.push_back(made.get());
    return made;
  }

  void Start(Exchange& exchange) override {
    auto& call = static_cast<UnaryExchange&>(exchange);
    call.answer = {};
    const grpc::ByteBuffer request = operation_.Encode(call);
    std::lock_guard lock(mutex_);
    call.status = grpc::Status::OK;
    call.reply.Clear();
    call.reader.reset();
    call.context.emplace();
    Prepare(*call.context, options_, options_.deadline_ms);
    call.in_flight = true;
    call.reader = call.stub.PrepareUnaryCall(&*call.context, method_, request, &queue_);
    call.reader->StartCall();
    call.reader->Finish(&call.reply, &call.status, &call);
  }

  void Poll(int64_t wait_ns, const Ended& ended) override {
    const Event event = NextEvent(queue_, wait_ns);
    if (event.tag == nullptr) return;
    auto& call = *static_cast<UnaryExchange*>(event.tag);
    {
      std::lock_guard lock(mutex_);
      call.in_flight = false;
    }
    if (call.status.ok()) {
      operation_.Decode(call.reply, call);
    } else {
      SetError(call.status, call.answer);
    }
    ended(call);
  }

  void CancelAll() override {
    std::lock_guard lock(mutex_);
    for (UnaryExchange* call : exchanges_) {
      if (call->in_flight) call->context->TryCancel();
    }
  }

 private:
  const SenderOptions options_;
  const std::vector<std::unique_ptr<Stub>> stubs_;
  const Operation& operation_;
  const std::string method_;
  grpc::CompletionQueue queue_;
  std::mutex mutex_;
  std::vector<UnaryExchange*> exchanges_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sender>> MakeUnarySender(const SenderOptions& options,
                                                        const Operation& operation) {
  auto stubs = Connect(options);
  if (!stubs.ok()) return stubs.status();
  return std::make_unique<UnarySender>(options, *std::move(stubs), operation);
}

}  // namespace nibble::load
