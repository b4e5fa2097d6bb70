// One run: a load of one strength, warmed up, measured in windows, and drained.
#ifndef NIBBLE_CLIENT_LOAD_RUN_H_
#define NIBBLE_CLIENT_LOAD_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/cpp/load/distribution.h"
#include "client/cpp/load/exchange.h"
#include "client/cpp/load/pacer.h"
#include "client/cpp/load/tally.h"

namespace nibble::load {

struct RunPlan {
  // Closed loop: this many callers, each of which sends when its last request was answered. 0: open
  // loop.
  int64_t concurrency = 1;
  // Open loop: requests a second.
  double rate = 0.0;
  Arrivals arrivals = Arrivals::kPoisson;
  // Of an open loop: most requests in flight, and over how many exchanges they are spread at least,
  // so that every connection is used.
  int64_t max_in_flight = 10000;
  int64_t least_exchanges = 1;
  uint64_t seed = 1;

  int64_t warmup_ns = 0;
  // The measurement ends after `measure_ns`, or later, once steady, up to `longest_ns`; or after
  // this many requests, if there are any.
  int64_t measure_ns = 0;
  int64_t longest_ns = 0;
  int64_t requests = 0;
  int64_t window_ns = 1'000'000'000;
  double stability_percent = 10.0;

  // What is in flight at the end has this long to be answered; then it is cancelled, which counts
  // as an error.
  int64_t drain_ns = 30'000'000'000;
  // Of an open loop: ends the run once a request is sent so late; 0: never.
  int64_t give_up_lag_ns = 0;
  double check_share = 0.0;  // of the answers

  bool open_loop() const { return concurrency == 0; }
};

struct RunResult {
  // Requests that were meant to be sent within the measurement, whenever they were answered.
  Tally total;
  // Good answers that arrived within it, and how long it was.
  Volume arrived;
  double seconds = 0.0;
  // Requests a second that were meant to be sent within it; what a closed loop sent.
  double offered_rate = 0.0;
  std::vector<Window> windows;
  Stability stability;
  bool given_up = false;

  double answer_rate() const { return PerSecond(arrived.answers); }
  double row_rate() const { return PerSecond(arrived.rows); }
  double request_bytes_rate() const { return PerSecond(arrived.request_bytes); }
  double reply_bytes_rate() const { return PerSecond(arrived.reply_bytes); }
  // Errors and mismatches over all requests; 1 without any request.
  double error_share() const;

 private:
  double PerSecond(int64_t count) const {
    return seconds > 0.0 ? static_cast<double>(count) / seconds : 0.0;
  }
};

struct RunActions {
  std::function<Draw(Random&)> draw;
  // What is wrong with the answer to a draw whose `check` is set; empty: nothing. From any thread.
  std::function<std::string(const Draw&, const std::string& y)> compare;
  // After each window; may be empty.
  std::function<void(const Window&, const Tally& so_far)> on_window;
};

// Runs with one thread a sender, and one more for the time of an open loop.
RunResult Run(const RunPlan& plan, std::span<const std::unique_ptr<Sender>> senders, Clock& clock,
              const RunActions& actions);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_RUN_H_
