// What every call of the data plane shares: admission, deadline, metrics, and the unary reactor.
#ifndef NIBBLE_SERVER_SERVICE_CALL_H_
#define NIBBLE_SERVER_SERVICE_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <optional>

#include "nibble/v1/linear.pb.h"
#include "server/clock/clock.h"
#include "server/executor/engine.h"
#include "server/metrics/metrics.h"
#include "server/service/auth.h"
#include "server/service/byte_budget.h"
#include "server/service/call_tracker.h"
#include "server/service/requests.h"
#include "server/service/shared_memory.h"
#include "server/service/stall_watch.h"

namespace nibble::server {

// What the services work with; outlives them.
struct ServiceContext {
  WeightStore& store;
  Engine& engine;
  Clock& clock;
  Metrics& metrics;
  AuthTokens tokens;
  BufferPool& results;
  StallWatch& stalls;
  SharedRegions* shared_memory = nullptr;  // null: callers may not attach memory
  bool enable_echo = false;
  uint64_t max_message_bytes = 0;
  // Of requests and replies, from acceptance until the reply is sent.
  ByteBudget held{UINT64_MAX};
  // Of the uploads under way, as they announce themselves.
  ByteBudget uploads{UINT64_MAX};
  RejectionMetrics* queue_full = metrics.Rejection("queue_full");
  // Set once, before the listener closes: new requests are answered with kUnavailable.
  std::atomic<bool> draining{false};
  CallTracker calls{};
};

// kUnavailable while draining, else what Authorize says.
absl::Status Admit(const ServiceContext& service, const grpc::ServerContextBase& context,
                   Plane plane);

// Who a call is from, for shares of the queue: the holder of its token where the data plane asks
// for one, else the connection it came on. After Admit.
uint64_t CallerOf(const ServiceContext& service, const grpc::ServerContextBase& context);

// Takes `bytes` of `held` for the caller. kResourceExhausted where the limit would be passed.
absl::Status Hold(ServiceContext& service, uint64_t caller, uint64_t bytes);

// The call's deadline on the server's clock; TimePoint::max() without one.
Clock::TimePoint DeadlineOf(const grpc::ServerContextBase& context, const Clock& clock);

// Counts one request from its construction until Finished.
class RequestMeter {
 public:
  RequestMeter(ServiceContext& service, RpcMetrics* rpc);
  void Finished(const absl::Status& status);

 private:
  ServiceContext& service_;
  RpcMetrics* rpc_;
  Clock::TimePoint begin_;
};

// Submits `prepared` with this deadline; `done` is called exactly once, also when the engine
// refuses or there is nothing to run (then before this returns). Gives the ticket while the work is
// under way.
std::optional<Batcher::Ticket> SubmitPrepared(ServiceContext& service, Prepared prepared,
                                              Clock::TimePoint deadline,
                                              const std::function<void(const Outcome&)>& done);

void FillInfo(const Outcome& outcome, const ServiceContext& service, size_t device_index,
              const WeightHandle& weight, v1::ExecutionInfo* info);

// One unary call. It deletes itself when gRPC is done with it.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ServiceContext& service, RpcMetrics* rpc, grpc::ServerContextBase& context,
            grpc::ByteBuffer* response)
      : service_(service),
        live_(service.calls),
        meter_(service, rpc),
        stall_(service.stalls, context),
        response_(response) {}
  ~UnaryCall() override { service_.held.GiveFrom(caller_, held_bytes_); }

  void OnCancel() override;
  void OnDone() override { delete this; }

 protected:
  // Runs `prepared` and answers; `info` is filled in when it succeeds. Called once, before the
  // reactor is handed to gRPC.
  void Run(absl::StatusOr<Prepared> prepared, const grpc::ServerContextBase& context,
           v1::ExecutionInfo* info);

 private:
  // The reply, after a success. Once.
  virtual grpc::ByteBuffer Encode() = 0;
  // Frees what the call holds, after a failure.
  virtual void Drop() = 0;
  // OnDone and OnCancel run where the library notices, also within a call into it: on a thread of
  // their own they cost a wake-up a call, which is a third of a small call's time.
  bool InternalInlineable() override { return true; }
  void Done(const Outcome& outcome);
  void End(const absl::Status& status);

  ServiceContext& service_;
  const CallTracker::Live live_;
  RequestMeter meter_;
  StallWatch::Wait stall_;
  grpc::ByteBuffer* const response_;
  size_t device_index_ = 0;
  uint64_t caller_ = 0;
  uint64_t held_bytes_ = 0;
  WeightHandle weight_;
  v1::ExecutionInfo* info_ = nullptr;
  std::optional<Batcher::Ticket> ticket_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_CALL_H_
