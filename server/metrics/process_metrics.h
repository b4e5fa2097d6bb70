// The usual process_* metrics, read from /proc when scraped.
#ifndef NIBBLE_SERVER_METRICS_PROCESS_METRICS_H_
#define NIBBLE_SERVER_METRICS_PROCESS_METRICS_H_

#include <string>
#include <string_view>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace nibble::server {

// A gauge or counter family of one series, for metrics that are computed when scraped.
prometheus::MetricFamily SingleValue(std::string name, std::string help,
                                     prometheus::MetricType type, double value);

// What /proc/self/stat says (proc(5)); times in clock ticks.
struct ProcessStat {
  uint64_t user_ticks = 0;
  uint64_t system_ticks = 0;
  int64_t threads = 0;
  uint64_t start_ticks = 0;  // since boot
  uint64_t virtual_bytes = 0;
  int64_t resident_pages = 0;
};

// False when `text` is not the line of a stat file. The command's name in it may hold any byte.
bool ParseProcessStat(std::string_view text, ProcessStat* stat);

// Collect leaves out what cannot be read.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_METRICS_PROCESS_METRICS_H_
