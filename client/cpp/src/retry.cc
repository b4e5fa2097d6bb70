#include "client/cpp/src/retry.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>

namespace nibble::client {

std::chrono::microseconds Backoff(const RetryPolicy& policy, int attempt, double random) {
  const auto in_us = [](std::chrono::milliseconds value) {
    return std::chrono::duration<double, std::micro>(value).count();
  };
  const double grown = in_us(policy.initial_backoff) * std::pow(policy.multiplier, attempt - 1);
  const double capped = std::min(grown, in_us(policy.max_backoff));
  return std::chrono::microseconds(static_cast<int64_t>(capped * (0.5 + 0.5 * random)));
}

bool PauseUnlessStopped(std::chrono::microseconds pause, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  wake.wait_for(lock, stop, pause, [] { return false; });
  return !stop.stop_requested();
}

}  // namespace nibble::client
