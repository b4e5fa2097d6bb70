#include "server/service/call.h"

#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "server/status/status.h"

namespace nibble::server {

absl::Status Admit(const ServiceContext& service, const grpc::ServerContextBase& context,
                   Plane plane) {
  if (service.draining.load(std::memory_order_acquire)) {
    return absl::UnavailableError("the server is draining; try another replica");
  }
  return Authorize(context, service.tokens, plane);
}

uint64_t CallerOf(const ServiceContext& service, const grpc::ServerContextBase& context) {
  if (!service.tokens.data.empty()) {
    const auto& metadata = context.client_metadata();
    const auto found = metadata.find("authorization");
    if (found != metadata.end()) {
      return std::hash<std::string_view>()({found->second.data(), found->second.size()});
    }
  }
  return std::hash<std::string>()(context.peer());
}

absl::Status Hold(ServiceContext& service, uint64_t caller, uint64_t bytes) {
  if (service.held.TakeFor(caller, bytes)) return absl::OkStatus();
  service.queue_full->Rejected();
  return absl::ResourceExhaustedError(
      fmt::format("the server holds too many bytes for callers that have not taken their replies: "
                  "the request has {} bytes, the limit is {}, twice --max-queue-bytes, and half of "
                  "it for one caller; try again later",
                  bytes, service.held.limit()));
}

Clock::TimePoint DeadlineOf(const grpc::ServerContextBase& context, const Clock& clock) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return Clock::TimePoint::max();
  const auto left = deadline - std::chrono::system_clock::now();
  // A deadline of years is none, and would overflow the clock's range.
  if (left > std::chrono::hours(24 * 365)) return Clock::TimePoint::max();
  return clock.Now() + std::chrono::duration_cast<Clock::Duration>(left);
}

RequestMeter::RequestMeter(ServiceContext& service, RpcMetrics* rpc)
    : service_(service), rpc_(rpc), begin_(service.clock.Now()) {
  service_.metrics.InflightAdd(1);
}

void RequestMeter::Finished(const absl::Status& status) {
  service_.metrics.InflightAdd(-1);
  const double seconds = MicrosecondsBetween(begin_, service_.clock.Now()) * 1e-6;
  rpc_->Finished(status.raw_code(), seconds);
}

std::optional<Batcher::Ticket> SubmitPrepared(ServiceContext& service, Prepared prepared,
                                              Clock::TimePoint deadline,
                                              const std::function<void(const Outcome&)>& done) {
  if (prepared.weight != nullptr) {
    prepared.weight->counters().requests.fetch_add(1, std::memory_order_relaxed);
  }
  if (prepared.work.rows == 0) {
    done(Outcome{});
    return std::nullopt;
  }
  prepared.work.deadline = deadline;
  prepared.work.done = done;
  auto ticket = service.engine.batcher(prepared.device_index).Submit(std::move(prepared.work));
  if (ticket.ok()) return *ticket;
  Outcome refused;
  refused.status = ticket.status();
  done(refused);
  return std::nullopt;
}

void FillInfo(const Outcome& outcome, const ServiceContext& service, size_t device_index,
              const WeightHandle& weight, v1::ExecutionInfo* info) {
  info->set_kernel(std::string(outcome.kernel));
  info->set_batch_rows(outcome.batch_rows);
  info->set_batches(outcome.batches);
  info->set_queue_us(std::llround(outcome.queue_us));
  info->set_compute_us(std::llround(outcome.compute_us));
  info->set_device(service.store.devices()[device_index]->info().id);
  if (weight != nullptr) info->set_weight_version(weight->version());
}

void UnaryCall::Run(absl::StatusOr<Prepared> prepared, const grpc::ServerContextBase& context,
                    v1::ExecutionInfo* info) {
  if (!prepared.ok()) {
    End(prepared.status());
    return;
  }
  caller_ = prepared->work.caller = CallerOf(service_, context);
  if (const absl::Status held = Hold(service_, caller_, prepared->work.bytes); !held.ok()) {
    End(held);
    return;
  }
  held_bytes_ = prepared->work.bytes;
  const Clock::TimePoint deadline = DeadlineOf(context, service_.clock);
  device_index_ = prepared->device_index;
  weight_ = prepared->weight;
  info_ = info;
  // Small enough for a function that allocates nothing.
  ticket_ = SubmitPrepared(service_, *std::move(prepared), deadline,
                           [this](const Outcome& outcome) { Done(outcome); });
}

void UnaryCall::Done(const Outcome& outcome) {
  if (outcome.status.ok()) FillInfo(outcome, service_, device_index_, weight_, info_);
  // Not held for as long as the caller takes to read the reply.
  weight_.reset();
  End(outcome.status);
}

void UnaryCall::End(const absl::Status& status) {
  meter_.Finished(status);
  if (status.ok()) {
    *response_ = Encode();
  } else {
    // Sending the status can take as long as the caller likes: not with the memory of a reply.
    Drop();
  }
  stall_.ForReader();
  Finish(ToGrpcStatus(status));
}

// gRPC calls this only after the handler has returned the reactor, so the ticket is in place, and
// calls OnDone only after it. The thread may hold the lock of a stream, which the batcher's
// callbacks want.
void UnaryCall::OnCancel() {
  if (ticket_) service_.engine.batcher(device_index_).CancelSoon(*ticket_);
}

}  // namespace nibble::server
