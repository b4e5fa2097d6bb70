// What was measured, for people and for programs.
#ifndef NIBBLE_CLIENT_LOAD_REPORT_H_
#define NIBBLE_CLIENT_LOAD_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/cli/session.h"
#include "client/cpp/load/find_max.h"
#include "client/cpp/load/run.h"
#include "client/cpp/load/workload.h"

namespace nibble::load {

// One run of the load, and of Echo with the same load where that was asked for.
struct Entry {
  int64_t callers = 0;  // 0: open loop
  double rate = 0.0;    // of an open loop
  int connections = 0;
  int threads = 0;
  RunResult result;
  std::optional<RunResult> echo;
};

struct Report {
  cli::Json parameters;
  std::vector<Layer> layers;
  std::vector<Entry> entries;
  std::optional<FindMaxResult> find_max;
};

// A line a run, and below it what needs saying: errors, mismatches, kernels, shares of Echo.
std::string TextOf(const Report& report);
cli::Json JsonOf(const Report& report);
// A head and a line a run; every parameter is a column.
std::string CsvOf(const Report& report);
// One step of a search, as it ends.
std::string TextOf(const FindMaxStep& step);
// One window, as it ends.
std::string TextOf(const Window& window, const Tally& so_far);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_REPORT_H_
