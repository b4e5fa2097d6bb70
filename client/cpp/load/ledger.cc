#include "client/cpp/load/ledger.h"

#include <utility>

namespace nibble::load {

bool Measurement::Wants(int64_t intended_ns) {
  if (intended_ns < begin_ns_) return true;
  const bool wanted = intended_ns < end_ns_ && (requests_ == 0 || wanted_.load() < requests_);
  // Several threads may see the last place free: one takes it.
  if (wanted && (wanted_.fetch_add(1) < requests_ || requests_ == 0)) return true;
  if (wanted) wanted_.fetch_sub(1);
  int64_t not_over = 0;
  over_since_ns_.compare_exchange_strong(not_over, intended_ns);
  return false;
}

void Measurement::End(int64_t end_ns) {
  end_ns_ = end_ns;
  int64_t not_over = 0;
  over_since_ns_.compare_exchange_strong(not_over, end_ns);
}

void Ledger::Record(const Exchange& exchange, int64_t now_ns, bool compared,
                    const std::string& mismatch) {
  if (now_ns < begin_ns_) return;
  const Answer& answer = exchange.answer;
  const bool good = answer.ok();
  std::lock_guard lock(mutex_);
  if (good) {
    tally_.volume.Add({.answers = 1,
                       .rows = exchange.draw.rows,
                       .request_bytes = answer.request_bytes,
                       .reply_bytes = answer.reply_bytes});
  }
  if (good && exchange.intended_ns < begin_ns_) return;
  ++tally_.requests;
  tally_.last_ns = now_ns;
  if (open_loop_) tally_.send_lag_ns.Record(exchange.sent_ns - exchange.intended_ns);
  if (!good) {
    ErrorCount& error = tally_.errors[answer.code];
    if (error.count++ == 0) error.message = answer.message;
    return;
  }
  tally_.latency_ns.Record(now_ns - exchange.intended_ns);
  tally_.queue_us.Record(answer.queue_us);
  tally_.compute_us.Record(answer.compute_us);
  tally_.batch_rows.Record(answer.batch_rows);
  if (!answer.kernel.empty()) ++tally_.kernels[answer.kernel];
  if (compared) ++tally_.checked;
  if (!mismatch.empty() && tally_.mismatches++ == 0) tally_.first_mismatch = mismatch;
}

void Ledger::RecordUnsent(int64_t count) {
  if (count == 0) return;
  std::lock_guard lock(mutex_);
  tally_.requests += count;
  ErrorCount& error = tally_.errors["UNSENT"];
  error.count += count;
  error.message = "too many requests were in flight until the end";
}

Tally Ledger::Take() {
  Tally fresh;
  std::lock_guard lock(mutex_);
  return std::exchange(tally_, std::move(fresh));
}

}  // namespace nibble::load
