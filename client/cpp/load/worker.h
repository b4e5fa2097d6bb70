// A sender, its exchanges and what the thread that polls it does.
#ifndef NIBBLE_CLIENT_LOAD_WORKER_H_
#define NIBBLE_CLIENT_LOAD_WORKER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "client/cpp/load/ledger.h"
#include "client/cpp/load/run.h"

namespace nibble::load {

// Whether the answer to the next request is to be compared.
bool Sampled(const RunPlan& plan, Random& random);

class Worker {
 public:
  // All arguments outlive it.
  Worker(const RunPlan& plan, Sender& sender, Measurement& measurement, Clock& clock,
         const RunActions& actions, uint64_t seed);

  Ledger& ledger() { return ledger_; }

  // Closed loop: adds a caller, before RunClosed sends until the measurement is over and all are
  // answered.
  void AddCaller(size_t number) { callers_.push_back(sender_.MakeExchange(number)); }
  void RunClosed();

  // Open loop: Send sends from another thread, `ended` gets each exchange back, and RunOpen returns
  // once all are sent and answered.
  void Send(Exchange& exchange);
  void RunOpen(const std::atomic<bool>& all_sent, const std::function<void(Exchange&)>& ended);

 private:
  struct Paused {
    int64_t until_ns;
    Exchange* exchange;
  };

  void SendAsCaller(Exchange& exchange);
  // Sends for the callers whose pause is over; how long until the next one's is.
  int64_t ResumePaused();
  // The time at which it ended.
  int64_t RecordEnded(const Exchange& exchange);
  // Cancels what is still in flight long after the end.
  void CancelLate();

  const RunPlan& plan_;
  Sender& sender_;
  Measurement& measurement_;
  Clock& clock_;
  const RunActions& actions_;
  Random random_;
  Ledger ledger_;
  std::vector<std::unique_ptr<Exchange>> callers_;
  std::deque<Paused> paused_;
  std::atomic<int64_t> in_flight_{0};
  bool cancelled_ = false;
};

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_WORKER_H_
