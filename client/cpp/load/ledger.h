// Who may still send, and what is written down of what was answered.
#ifndef NIBBLE_CLIENT_LOAD_LEDGER_H_
#define NIBBLE_CLIENT_LOAD_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>

#include "client/cpp/load/exchange.h"
#include "client/cpp/load/tally.h"

namespace nibble::load {

// The measurement: [begin, end) of the clock, or a number of requests from `begin` on. Thread safe.
class Measurement {
 public:
  // `requests` 0: until End.
  Measurement(int64_t begin_ns, int64_t requests) : begin_ns_(begin_ns), requests_(requests) {}

  int64_t begin_ns() const { return begin_ns_; }
  // Whether a request that is due at this time is part of the load. Those of the warm-up always
  // are.
  bool Wants(int64_t intended_ns);
  // No request from `end_ns` on is wanted.
  void End(int64_t end_ns);
  // End was called, or Wants said no.
  bool over() const { return over_since_ns_ != 0; }
  // How long that has been so.
  int64_t OverFor(int64_t now_ns) const { return over() ? now_ns - over_since_ns_ : 0; }
  // Requests of the measurement, not of the warm-up, that were wanted.
  int64_t wanted() const { return wanted_; }

 private:
  const int64_t begin_ns_;
  const int64_t requests_;
  std::atomic<int64_t> end_ns_{std::numeric_limits<int64_t>::max()};
  std::atomic<int64_t> wanted_{0};
  std::atomic<int64_t> over_since_ns_{0};
};

// The tally of one thread, which another takes away from time to time.
class Ledger {
 public:
  // Of a measurement that begins then; `open_loop` records how late requests were sent.
  Ledger(int64_t begin_ns, bool open_loop) : begin_ns_(begin_ns), open_loop_(open_loop) {}

  // An exchange that ended at `now_ns`; `mismatch` as RunActions::compare says it. Latency counts
  // from the time at which the request should have been sent. Of the warm-up's requests only those
  // count that fail after it.
  void Record(const Exchange& exchange, int64_t now_ns, bool compared, const std::string& mismatch);
  // Requests of the measurement that could not be sent.
  void RecordUnsent(int64_t count);
  // What was recorded since the last time.
  Tally Take();

 private:
  const int64_t begin_ns_;
  const bool open_loop_;
  std::mutex mutex_;
  Tally tally_;
};

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_LEDGER_H_
