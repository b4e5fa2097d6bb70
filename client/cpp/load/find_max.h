// The highest rate that meets a latency target, by bisection.
#ifndef NIBBLE_CLIENT_LOAD_FIND_MAX_H_
#define NIBBLE_CLIENT_LOAD_FIND_MAX_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::load {

struct FindMaxOptions {
  double p99_ms = 0.0;      // target
  double start_rate = 0.0;  // first rate that is tried, per second
  double precision = 0.05;  // ends when the bounds are this close, relative to the lower one
  // Of the offered rate that has to be answered within the probe, beside what may still be in
  // flight at its end: one request, and those of its last p99_ms.
  double achieved_share = 0.97;
  double max_error_share = 0.0;
  // A rate fails when so many probes in a row miss: one may have met with something else that this
  // machine or the server's was doing.
  int attempts = 2;
  int max_steps = 32;  // probes
};

// What a probe at one rate found.
struct Probe {
  double seconds = 0.0;
  double offered_rate = 0.0;
  double achieved_rate = 0.0;
  double p99_ms = 0.0;
  double error_share = 0.0;
  bool given_up = false;  // fell so far behind that the rest was not sent
};

struct FindMaxStep {
  double rate = 0.0;
  Probe probe;
  bool passed = false;
  std::string reason;  // why it did not pass
};

struct FindMaxResult {
  // The highest rate that passed; 0: none did.
  double rate = 0.0;
  // The lowest rate that failed; 0: none did, and `rate` is only what max_steps allowed.
  double failed_rate = 0.0;
  std::vector<FindMaxStep> steps;
};

// Why a probe misses the target; empty: it meets it.
std::string MissOf(const Probe& probe, const FindMaxOptions& options);

// Doubles or halves the rate until one passes and one fails, then tries the geometric mean of the
// two, until the bounds are close. `on_step` sees every step as it ends. An error of `probe` ends
// the search.
absl::StatusOr<FindMaxResult> FindMax(
    const FindMaxOptions& options, const std::function<absl::StatusOr<Probe>(double rate)>& probe,
    const std::function<void(const FindMaxStep&)>& on_step);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_FIND_MAX_H_
