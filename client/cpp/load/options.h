// The flags of nibble-load.
#ifndef NIBBLE_CLIENT_LOAD_OPTIONS_H_
#define NIBBLE_CLIENT_LOAD_OPTIONS_H_

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/cli/session.h"
#include "client/cpp/load/distribution.h"
#include "client/cpp/load/workload.h"

namespace nibble::load {

enum class Transport { kUnary, kStream };

struct Options {
  cli::GlobalFlags connection;

  WorkloadOptions workload;
  std::string rows = "1";

  std::string concurrency;  // as given; empty: open loop, or 1
  std::string rate;
  std::vector<int64_t> concurrencies;  // as parsed
  std::vector<double> rates;
  Arrivals arrivals = Arrivals::kPoisson;
  int64_t max_in_flight = 10000;

  Transport transport = Transport::kUnary;
  bool shared_memory = false;
  int connections = 0;  // 0: by the load
  int threads = 0;      // 0: by the machine

  double warmup_seconds = 1.0;
  double seconds = 5.0;
  double longest_seconds = 0.0;  // 0: seconds
  double window_seconds = 0.0;   // 0: a fifth of seconds
  int64_t requests = 0;
  double stability_percent = 10.0;
  double max_error_share = 0.0;

  bool check = false;
  double check_share = 1.0;
  bool against_echo = false;
  bool find_max = false;
  double p99_ms = 0.0;
  double precision_percent = 5.0;
  int max_steps = 32;

  std::string json;
  std::string csv;
  std::string label;
  bool progress = false;

  int64_t deadline_ms() const { return connection.deadline_ms.value_or(30000); }
  // Threads of a closed or an open loop with this many callers (0: open).
  int ThreadsFor(int64_t callers) const;
  // Connections of all threads together.
  int ConnectionsFor(int64_t callers) const;
  // Every flag that shapes the load or the measurement, by its name.
  cli::Json ToJson() const;
};

// Adds every flag; `options` outlives `app`.
void AddFlags(CLI::App& app, Options& options);

// Parses what the flags hold and checks that they fit together; kInvalidArgument names the flag.
absl::Status Complete(const CLI::App& app, Options& options);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_OPTIONS_H_
