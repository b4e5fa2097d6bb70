// One MatmulStream call.
//
//   read -> submit -> (done, any order) -> ready -> write, one at a time
//
// At most kMaxInFlight requests of a stream, and kMaxHeldBytes of tensors and one request more, are
// between read and written; then it stops reading, and the transport's flow control holds the
// caller back. The call ends when the caller has closed its side (or the server drains, or the
// caller went away) and everything accepted has been answered.
#ifndef NIBBLE_SERVER_SERVICE_MATMUL_STREAM_H_
#define NIBBLE_SERVER_SERVICE_MATMUL_STREAM_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "server/service/call.h"
#include "server/service/stream_registry.h"

namespace nibble::server {

class MatmulStreamCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                               public DrainableStream {
 public:
  static constexpr size_t kMaxInFlight = 64;
  static constexpr uint64_t kMaxHeldBytes = uint64_t{64} << 20;

  MatmulStreamCall(ServiceContext& service, const RequestBuilder& builder, RpcMetrics* rpc,
                   StreamRegistry& registry, grpc::CallbackServerContext& context);
  ~MatmulStreamCall() override { service_.held.GiveFrom(caller_, held_bytes_); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Drain() override;

 private:
  // A request from read to written.
  struct Exchange {
    uint64_t number = 0;    // in the order of reading
    grpc::ByteBuffer wire;  // the request, and later the response
    TensorRequest<v1::MatmulRequest> request;
    TensorReply<v1::MatmulResponse> result;
    std::optional<RequestMeter> meter;
    size_t device_index = 0;
    std::optional<Batcher::Ticket> ticket;
    uint64_t bytes = 0;  // of inputs and outputs, held for the caller
  };

  // With mutex_ held: takes the exchange that was read, or ends the call where it is no request.
  Exchange* Accept();
  void Start(Exchange* exchange, uint64_t number);
  // The work of an exchange, its bytes held for the caller.
  absl::StatusOr<Prepared> Prepare(Exchange* exchange);
  void Answered(Exchange* exchange, const Outcome& outcome, const WeightHandle& weight);
  // With mutex_ held: starts what can be started, ends what can be ended.
  void Advance();

  ServiceContext& service_;
  const RequestBuilder& builder_;
  const CallTracker::Live live_;
  RpcMetrics* const rpc_;
  StallWatch::Wait stall_;
  StreamRegistry& registry_;
  const Clock::TimePoint deadline_;
  const uint64_t caller_;

  std::mutex mutex_;
  absl::Status ending_;       // not OK: no more reads, and the status of the call
  bool half_closed_ = false;  // by the caller
  bool cancelled_ = false;
  bool reading_ = false;
  uint64_t requests_read_ = 0;
  bool finished_ = false;
  std::unique_ptr<Exchange> next_;         // being read into
  std::map<uint64_t, Exchange*> running_;  // submitted
  std::deque<std::unique_ptr<Exchange>>
      ready_;  // to be written; the front one is being written if writing_
  bool writing_ = false;
  uint64_t held_bytes_ = 0;  // of running_ and ready_, taken from the budget
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_MATMUL_STREAM_H_
