// What a run counts, and what it says about whether the run was steady.
#ifndef NIBBLE_CLIENT_LOAD_TALLY_H_
#define NIBBLE_CLIENT_LOAD_TALLY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/cpp/load/histogram.h"

namespace nibble::load {

// Failed requests of one code, with the message of the first.
struct ErrorCount {
  int64_t count = 0;
  std::string message;
};

// What good answers carried.
struct Volume {
  int64_t answers = 0;
  int64_t rows = 0;
  int64_t request_bytes = 0;  // messages, and tensors in shared memory
  int64_t reply_bytes = 0;

  void Add(const Volume& other);
};

// Not thread safe.
struct Tally {
  // Good answers that arrived while this tally was in use.
  Volume volume;
  // All below counts only requests that were meant to be sent within the measurement, whenever they
  // ended.
  int64_t requests = 0;  // good or not
  int64_t last_ns = 0;   // when the last of them ended
  // Of good answers, from the time at which the request was meant to be sent.
  Histogram latency_ns;
  // By how much sending was late; open loop alone.
  Histogram send_lag_ns;
  // As the server reports them.
  Histogram queue_us;
  Histogram compute_us;
  Histogram batch_rows;
  std::map<std::string, int64_t, std::less<>> kernels;
  int64_t checked = 0;
  int64_t mismatches = 0;
  std::string first_mismatch;
  std::map<std::string, ErrorCount, std::less<>> errors;  // by code; mismatches are not among them

  int64_t failures() const;
  void Merge(const Tally& other);
};

// One stretch of a measurement.
struct Window {
  double seconds = 0.0;
  int64_t answers = 0;
  int64_t failures = 0;
  int64_t p99_ns = 0;

  double rate() const { return seconds > 0.0 ? static_cast<double>(answers) / seconds : 0.0; }
};

// Steady: over the last three windows the largest and the smallest rate differ by at most `percent`
// of their mean, and so do the 99th percentiles of the latency. Fewer windows are not steady.
struct Stability {
  static constexpr size_t kWindows = 3;

  bool stable = false;
  double rate_spread_percent = 0.0;
  double p99_spread_percent = 0.0;
};
Stability StabilityOf(const std::vector<Window>& windows, double percent);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_TALLY_H_
