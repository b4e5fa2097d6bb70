#include "client/cpp/load/find_max.h"

#include <cmath>

#include "fmt/format.h"

namespace nibble::load {
namespace {

// Below this no rate is worth trying: one request in a hundred seconds.
constexpr double kLeastRate = 0.01;

double NextRate(const FindMaxResult& found) {
  if (found.failed_rate == 0.0) return found.rate * 2.0;
  if (found.rate == 0.0) return found.failed_rate / 2.0;
  return std::sqrt(found.rate * found.failed_rate);
}

bool Done(const FindMaxOptions& options, const FindMaxResult& found) {
  if (static_cast<int>(found.steps.size()) >= options.max_steps) return true;
  if (found.failed_rate == 0.0) return false;
  if (found.rate == 0.0) return found.failed_rate / 2.0 < kLeastRate;
  return found.failed_rate <= found.rate * (1.0 + options.precision);
}

}  // namespace

std::string MissOf(const Probe& probe, const FindMaxOptions& options) {
  if (probe.given_up) return "fell behind";
  if (probe.error_share > options.max_error_share) {
    return fmt::format("{:.3g} % errors", 100.0 * probe.error_share);
  }
  if (!(probe.achieved_rate > 0.0)) return "no answers";
  if (!(probe.p99_ms <= options.p99_ms)) return "p99 above the target";
  const double offered = probe.offered_rate * probe.seconds;
  const double in_flight = 1.0 + probe.offered_rate * options.p99_ms / 1e3;
  if (!(probe.achieved_rate * probe.seconds >= options.achieved_share * offered - in_flight)) {
    return fmt::format("{:.0f} % of the offered rate",
                       100.0 * probe.achieved_rate / probe.offered_rate);
  }
  return "";
}

absl::StatusOr<FindMaxResult> FindMax(
    const FindMaxOptions& options, const std::function<absl::StatusOr<Probe>(double rate)>& probe,
    const std::function<void(const FindMaxStep&)>& on_step) {
  if (!(options.start_rate > 0.0)) {
    return absl::InvalidArgumentError("start_rate: expected a rate above 0");
  }
  FindMaxResult found;
  int missed = 0;  // in a row, at this rate
  double rate = options.start_rate;
  while (!Done(options, found)) {
    FindMaxStep step;
    step.rate = rate;
    const absl::StatusOr<Probe> probed = probe(rate);
    if (!probed.ok()) return probed.status();
    step.probe = *probed;
    step.reason = MissOf(step.probe, options);
    step.passed = step.reason.empty();
    found.steps.push_back(step);
    on_step(step);
    missed = step.passed ? 0 : missed + 1;
    if (step.passed) {
      found.rate = rate;
    } else if (missed < options.attempts) {
      continue;
    } else {
      found.failed_rate = rate;
      missed = 0;
    }
    rate = NextRate(found);
  }
  return found;
}

}  // namespace nibble::load
