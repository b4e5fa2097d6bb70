#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "client/cpp/load/connections.h"
#include "client/cpp/load/senders.h"

namespace nibble::load {
namespace {

constexpr std::chrono::seconds kCloseWait{2};
constexpr int64_t kClosePollNs = 10'000'000;

class Stream;

class StreamExchange final : public Exchange {
 public:
  StreamExchange(size_t number, Stream& on) : Exchange(number), stream(on) {}
  Stream& stream;
};

// What a completion queue reports of a stream.
struct StreamEvent {
  enum class Kind { kStart, kRead, kWrite, kWritesDone, kFinish };
  Stream* stream;
  Kind kind;
};

// One MatmulStream at a time: closed, then open from the first request on, until it breaks or is
// closed.
class Stream {
 public:
  Stream(const SenderOptions& options, std::unique_ptr<Stub> stub, const Operation& operation,
         grpc::CompletionQueue& queue)
      : options_(options),
        stub_(std::move(stub)),
        operation_(operation),
        method_(operation.method()),
        queue_(queue) {}

  // From any thread.
  void Start(StreamExchange& exchange) {
    std::lock_guard lock(mutex_);
    in_flight_.emplace(exchange.number(), &exchange);
    to_write_.push_back(&exchange);
    if (call_ == nullptr) {
      Open();
    } else {
      WriteNext();
    }
  }

  // Appends what has ended.
  void OnEvent(StreamEvent::Kind kind, bool ok, std::vector<Exchange*>& ended) {
    switch (kind) {
      case StreamEvent::Kind::kRead:
        OnRead(ok, ended);
        return;
      case StreamEvent::Kind::kStart: {
        std::lock_guard lock(mutex_);
        started_ = ok;
        if (ok) {
          call_->Read(&incoming_, &read_);
          WriteNext();
        } else {
          call_->Finish(&status_, &finish_);
        }
        return;
      }
      case StreamEvent::Kind::kWrite: {
        std::lock_guard lock(mutex_);
        writing_ = false;
        if (ok) WriteNext();
        break;
      }
      case StreamEvent::Kind::kWritesDone: {
        std::lock_guard lock(mutex_);
        closing_ = false;
        break;
      }
      case StreamEvent::Kind::kFinish: {
        std::lock_guard lock(mutex_);
        finished_ = true;
        break;
      }
    }
    ResetIfOver(ended);
  }

  void Cancel() {
    std::lock_guard lock(mutex_);
    if (call_ != nullptr) context_->TryCancel();
  }

  // Half-closes once, as soon as nothing is being written; the server then ends the stream.
  void Close() {
    std::lock_guard lock(mutex_);
    if (call_ == nullptr || !started_ || writing_ || ending_ || half_closed_) return;
    half_closed_ = closing_ = true;
    call_->WritesDone(&writes_done_);
  }

  bool closed() {
    std::lock_guard lock(mutex_);
    return call_ == nullptr;
  }

 private:
  void Open() {
    context_ = std::make_unique<grpc::ClientContext>();
    Prepare(*context_, options_, 0);
    started_ = finished_ = ending_ = half_closed_ = false;
    call_ = stub_->PrepareCall(context_.get(), method_, &queue_);
    call_->StartCall(&start_);
  }

  void WriteNext() {
    if (!started_ || writing_ || ending_ || to_write_.empty()) return;
    StreamExchange& next = *to_write_.front();
    to_write_.pop_front();
    writing_ = true;
    call_->Write(operation_.Encode(next), &write_);
  }

  void OnRead(bool ok, std::vector<Exchange*>& ended) {
    grpc::ByteBuffer reply;
    {
      std::lock_guard lock(mutex_);
      if (!ok) {
        ending_ = true;
        call_->Finish(&status_, &finish_);
        return;
      }
      reply.Swap(&incoming_);
      call_->Read(&incoming_, &read_);
    }
    const int64_t number = ExchangeNumberOf(reply);
    StreamExchange* exchange = nullptr;
    {
      std::lock_guard lock(mutex_);
      const auto found =
          number < 0 ? in_flight_.end() : in_flight_.find(static_cast<size_t>(number));
      if (found == in_flight_.end()) {
        // An answer to nothing: what else this stream says is not to be believed.
        context_->TryCancel();
        return;
      }
      exchange = found->second;
      in_flight_.erase(found);
    }
    operation_.Decode(reply, *exchange);
    ended.push_back(exchange);
  }

  // Once nothing of the call is outstanding: all that is in flight ends with its status.
  void ResetIfOver(std::vector<Exchange*>& ended) {
    std::lock_guard lock(mutex_);
    if (!finished_ || writing_ || closing_) return;
    if (status_.ok()) {
      status_ = grpc::Status(grpc::StatusCode::UNKNOWN, "the stream ended without an answer");
    }
    for (const auto& [number, exchange] : in_flight_) {
      SetError(status_, exchange->answer);
      ended.push_back(exchange);
    }
    in_flight_.clear();
    to_write_.clear();
    call_.reset();
    context_.reset();
    status_ = grpc::Status::OK;
    finished_ = started_ = false;
  }

  const SenderOptions& options_;
  const std::unique_ptr<Stub> stub_;
  const Operation& operation_;
  const std::string method_;
  grpc::CompletionQueue& queue_;
  StreamEvent start_{this, StreamEvent::Kind::kStart};
  StreamEvent read_{this, StreamEvent::Kind::kRead};
  StreamEvent write_{this, StreamEvent::Kind::kWrite};
  StreamEvent writes_done_{this, StreamEvent::Kind::kWritesDone};
  StreamEvent finish_{this, StreamEvent::Kind::kFinish};

  std::mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> call_;
  grpc::ByteBuffer incoming_;
  grpc::Status status_;
  bool started_ = false;
  bool writing_ = false;
  bool half_closed_ = false;
  bool closing_ = false;   // the half-close is under way
  bool ending_ = false;    // Finish was called
  bool finished_ = false;  // Finish was answered
  std::deque<StreamExchange*> to_write_;
  std::unordered_map<size_t, StreamExchange*> in_flight_;  // by number; what is to be written too
};

class StreamSender final : public Sender {
 public:
  StreamSender(SenderOptions options, std::vector<std::unique_ptr<Stub>> stubs,
               const Operation& operation)
      : options_(std::move(options)) {
    for (std::unique_ptr<Stub>& stub : stubs) {
      streams_.push_back(std::make_unique<Stream>(options_, std::move(stub), operation, queue_));
    }
  }

  ~StreamSender() override {
    const auto begin = std::chrono::steady_clock::now();
    while (!AllClosed()) {
      for (const auto& stream : streams_) stream->Close();
      if (std::chrono::steady_clock::now() - begin > kCloseWait) CancelAll();
      Poll(kClosePollNs, [](Exchange&) {});
    }
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  std::unique_ptr<Exchange> MakeExchange(size_t number) override {
    return std::make_unique<StreamExchange>(number, *streams_[made_++ % streams_.size()]);
  }

  void Start(Exchange& exchange) override {
    exchange.answer = {};
    auto& streamed = static_cast<StreamExchange&>(exchange);
    streamed.stream.Start(streamed);
  }

  void Poll(int64_t wait_ns, const Ended& ended) override {
    const Event event = NextEvent(queue_, wait_ns);
    if (event.tag == nullptr) return;
    const auto& happened = *static_cast<StreamEvent*>(event.tag);
    std::vector<Exchange*> done;
    happened.stream->OnEvent(happened.kind, event.ok, done);
    for (Exchange* exchange : done) ended(*exchange);
  }

  void CancelAll() override {
    for (const auto& stream : streams_) stream->Cancel();
  }

 private:
  bool AllClosed() const {
    for (const auto& stream : streams_) {
      if (!stream->closed()) return false;
    }
    return true;
  }

  const SenderOptions options_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Stream>> streams_;
  size_t made_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sender>> MakeStreamSender(const SenderOptions& options,
                                                         const Operation& operation) {
  auto stubs = Connect(options);
  if (!stubs.ok()) return stubs.status();
  return std::make_unique<StreamSender>(options, *std::move(stubs), operation);
}

}  // namespace nibble::load
