#include "server/service/stall_watch.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "server/log/log.h"

namespace nibble::server {

// All limits are equal, so waits expire in the order in which they begin: one timer, for the first
// of them, is enough, and a call that is not slow costs two moves of a list's element.
struct StallWatch::State : std::enable_shared_from_this<State> {
  State(Clock& its_clock, std::chrono::milliseconds its_limit)
      : clock(its_clock), limit(its_limit) {}

  std::string Message(const Entry& entry) const {
    return fmt::format("{} for {} ms (--stall-timeout-ms)", entry.what, limit.count());
  }
  // With the mutex held.
  void SetTimer() {
    if (timer != 0 || closed || waiting.empty()) return;
    timer = clock.RunAt(waiting.front().until, [state = shared_from_this()] { state->Expire(); });
  }
  void Expire();

  Clock& clock;
  const std::chrono::milliseconds limit;
  std::mutex mutex;
  std::list<Entry> waiting;
  std::list<Entry> expired;  // their calls have not ended the wait yet
  Clock::TimerId timer = 0;
  bool closed = false;
};

void StallWatch::State::Expire() {
  std::vector<std::pair<grpc_call*, std::string>> given_up;
  {
    std::lock_guard lock(mutex);
    timer = 0;
    if (closed) return;
    const Clock::TimePoint now = clock.Now();
    while (!waiting.empty() && waiting.front().until <= now) {
      Entry& entry = waiting.front();
      entry.expired = true;
      // While its wait is listed the call lives; with the reference it does for longer.
      grpc_call_ref(entry.call);
      given_up.emplace_back(entry.call, Message(entry));
      expired.splice(expired.end(), waiting, waiting.begin());
    }
    SetTimer();
  }
  // Reactors may run, and be gone, within these calls.
  for (const auto& [call, message] : given_up) {
    char* peer = grpc_call_get_peer(call);
    log::Warn("caller_stalled", {{"peer", peer}, {"error", message}});
    gpr_free(peer);
    grpc_call_cancel_with_status(call, GRPC_STATUS_DEADLINE_EXCEEDED, message.c_str(), nullptr);
    grpc_call_unref(call);
  }
}

StallWatch::StallWatch(Clock& clock, std::chrono::milliseconds limit)
    : state_(std::make_shared<State>(clock, limit)) {}

StallWatch::~StallWatch() {
  Clock::TimerId timer = 0;
  {
    std::lock_guard lock(state_->mutex);
    state_->closed = true;
    timer = state_->timer;
  }
  state_->clock.Cancel(timer);
}

StallWatch::Wait::Wait(StallWatch& watch, grpc::ServerContextBase& context)
    : state_(watch.state_), own_(1), entry_(own_.begin()) {
  entry_->call = context.c_call();
}

void StallWatch::Wait::Begin(const char* what) {
  std::lock_guard lock(state_->mutex);
  if (own_.empty() || entry_->expired) return;
  entry_->until = state_->clock.Now() + state_->limit;
  entry_->what = what;
  state_->waiting.splice(state_->waiting.end(), own_);
  state_->SetTimer();
}

void StallWatch::Wait::End() {
  std::lock_guard lock(state_->mutex);
  if (!own_.empty()) return;
  own_.splice(own_.end(), entry_->expired ? state_->expired : state_->waiting, entry_);
}

absl::Status StallWatch::Wait::Explain(const absl::Status& otherwise) const {
  std::lock_guard lock(state_->mutex);
  return entry_->expired ? absl::DeadlineExceededError(state_->Message(*entry_)) : otherwise;
}

}  // namespace nibble::server
