#include <random>

#include "client/cpp/src/impl.h"
#include "client/cpp/src/retry.h"

namespace nibble::client {
namespace {

double UniformRandom() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0.0, 1.0)(generator);
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  const bool known = code >= 1 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      status.error_message());
}

CallScope::CallScope(const std::string& token, const std::optional<TimePoint>& deadline,
                     const CallOptions& options) {
  if (deadline.has_value()) context_.set_deadline(*deadline);
  if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
  context_.set_wait_for_ready(options.wait_for_ready);
  on_stop_.emplace(options.cancel, Cancel{&context_});
}

std::optional<TimePoint> Client::Impl::DeadlineOf(const CallOptions& call,
                                                  std::chrono::milliseconds standard) {
  const std::chrono::milliseconds limit = call.deadline.value_or(standard);
  if (limit.count() <= 0) return std::nullopt;
  return std::chrono::system_clock::now() + limit;
}

absl::Status Client::Impl::Reachable(Plane plane) const {
  if (plane == Plane::kData || control_channel != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("control_address: this client was made without one");
}

absl::Status Client::Impl::CallOnce(
    Plane plane, const CallOptions& call,
    const std::function<grpc::Status(grpc::ClientContext&)>& attempt) const {
  if (absl::Status status = Reachable(plane); !status.ok()) return status;
  CallScope scope(Token(plane), DeadlineOf(call, std::chrono::milliseconds(0)), call);
  return FromGrpc(attempt(scope.context()));
}

absl::Status Client::Impl::CallRepeatable(
    Plane plane, const CallOptions& call,
    const std::function<grpc::Status(grpc::ClientContext&)>& attempt,
    const std::function<bool()>& may_repeat) const {
  if (absl::Status status = Reachable(plane); !status.ok()) return status;
  const std::optional<TimePoint> deadline = DeadlineOf(call, options.deadline);
  for (int made = 1;; ++made) {
    absl::Status status;
    {
      CallScope scope(Token(plane), deadline, call);
      status = FromGrpc(attempt(scope.context()));
    }
    if (status.code() != absl::StatusCode::kUnavailable || made >= options.retry.max_attempts) {
      return status;
    }
    if (may_repeat && !may_repeat()) return status;
    const std::chrono::microseconds pause = Backoff(options.retry, made, UniformRandom());
    if (deadline.has_value() && std::chrono::system_clock::now() + pause >= *deadline)
      return status;
    if (!PauseUnlessStopped(pause, call.cancel)) {
      return absl::CancelledError("the caller asked to stop");
    }
  }
}

}  // namespace nibble::client
