#include "client/cpp/load/worker.h"

#include <algorithm>

namespace nibble::load {
namespace {

// A thread that waits for answers looks up this often.
constexpr int64_t kTickNs = 20'000'000;
// A caller whose request failed pauses, so that a server that refuses at once is not asked in a
// tight loop.
constexpr int64_t kErrorPauseNs = 10'000'000;

}  // namespace

bool Sampled(const RunPlan& plan, Random& random) {
  return plan.check_share > 0.0 &&
         std::uniform_real_distribution<double>(0.0, 1.0)(random) < plan.check_share;
}

Worker::Worker(const RunPlan& plan, Sender& sender, Measurement& measurement, Clock& clock,
               const RunActions& actions, uint64_t seed)
    : plan_(plan),
      sender_(sender),
      measurement_(measurement),
      clock_(clock),
      actions_(actions),
      random_(seed),
      ledger_(measurement.begin_ns(), plan.open_loop()) {}

void Worker::RunClosed() {
  for (const auto& caller : callers_) SendAsCaller(*caller);
  while (in_flight_ > 0 || !paused_.empty()) {
    const int64_t wait_ns = ResumePaused();
    sender_.Poll(wait_ns, [this](Exchange& exchange) {
      --in_flight_;
      const int64_t now_ns = RecordEnded(exchange);
      if (exchange.answer.ok()) {
        SendAsCaller(exchange);
      } else {
        paused_.push_back({now_ns + kErrorPauseNs, &exchange});
      }
    });
    CancelLate();
  }
}

int64_t Worker::ResumePaused() {
  while (!paused_.empty()) {
    const int64_t wait_ns = paused_.front().until_ns - clock_.NowNs();
    if (wait_ns > 0 && !measurement_.over()) return std::min(wait_ns, kTickNs);
    Exchange& next = *paused_.front().exchange;
    paused_.pop_front();
    SendAsCaller(next);
  }
  return kTickNs;
}

void Worker::SendAsCaller(Exchange& exchange) {
  const int64_t now_ns = clock_.NowNs();
  if (!measurement_.Wants(now_ns)) return;
  exchange.draw = actions_.draw(random_);
  exchange.draw.check = Sampled(plan_, random_);
  exchange.intended_ns = exchange.sent_ns = now_ns;
  ++in_flight_;
  sender_.Start(exchange);
}

void Worker::Send(Exchange& exchange) {
  ++in_flight_;
  sender_.Start(exchange);
}

void Worker::RunOpen(const std::atomic<bool>& all_sent,
                     const std::function<void(Exchange&)>& ended) {
  while (!all_sent || in_flight_ > 0) {
    sender_.Poll(kTickNs, [&](Exchange& exchange) {
      RecordEnded(exchange);
      --in_flight_;
      ended(exchange);
    });
    CancelLate();
  }
}

int64_t Worker::RecordEnded(const Exchange& exchange) {
  const int64_t now_ns = clock_.NowNs();
  const Answer& answer = exchange.answer;
  std::string mismatch;
  bool compared = false;
  if (answer.ok() && !answer.fault.empty()) {
    mismatch = answer.fault;
  } else if (answer.ok() && exchange.draw.check) {
    mismatch = actions_.compare(exchange.draw, answer.y);
    compared = true;
  }
  ledger_.Record(exchange, now_ns, compared, mismatch);
  return now_ns;
}

void Worker::CancelLate() {
  if (cancelled_ || !measurement_.over()) return;
  if (measurement_.OverFor(clock_.NowNs()) < plan_.drain_ns) return;
  cancelled_ = true;
  sender_.CancelAll();
}

}  // namespace nibble::load
