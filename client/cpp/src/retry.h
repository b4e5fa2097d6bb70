// When a call is tried again, and after how long.
#ifndef NIBBLE_CLIENT_SRC_RETRY_H_
#define NIBBLE_CLIENT_SRC_RETRY_H_

#include <chrono>
#include <stop_token>

#include "nibble/client.h"

namespace nibble::client {

// Pause after failed attempt `attempt` (1, 2, ...); `random` is uniform in [0, 1).
std::chrono::microseconds Backoff(const RetryPolicy& policy, int attempt, double random);

// Waits for `pause`; false, at once, when a stop is requested.
bool PauseUnlessStopped(std::chrono::microseconds pause, const std::stop_token& stop);

}  // namespace nibble::client

#endif  // NIBBLE_CLIENT_SRC_RETRY_H_
