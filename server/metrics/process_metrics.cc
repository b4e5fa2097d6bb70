#include "server/metrics/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

namespace nibble::server {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

std::string ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Seconds of the epoch at which the machine started, from the line "btime" of /proc/stat.
std::optional<double> BootTime() {
  std::ifstream file("/proc/stat");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("btime ")) {
      double seconds = 0;
      std::istringstream(line.substr(6)) >> seconds;
      return seconds;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> OpenFiles() {
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  if (error) return std::nullopt;
  int64_t count = 0;
  for (; entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (error) return std::nullopt;
    ++count;
  }
  return count - 1;  // the directory itself was open
}

}  // namespace

MetricFamily SingleValue(std::string name, std::string help, MetricType type, double value) {
  MetricFamily family{std::move(name), std::move(help), type, {}};
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return family;
}

bool ParseProcessStat(std::string_view text, ProcessStat* stat) {
  const size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos) return false;
  std::istringstream fields{std::string(text.substr(name_end + 1))};
  const auto skip = [&fields](int count) {
    std::string ignored;
    for (int i = 0; i < count; ++i) fields >> ignored;
  };
  // Fields are numbered as in proc(5); state, the first after the name, is 3.
  skip(11);
  fields >> stat->user_ticks >> stat->system_ticks;  // 14, 15
  skip(4);
  fields >> stat->threads;  // 20
  skip(1);
  fields >> stat->start_ticks >> stat->virtual_bytes >> stat->resident_pages;  // 22..24
  return !fields.fail();
}

std::vector<MetricFamily> ProcessMetrics::Collect() const {
  std::vector<MetricFamily> families;
  const auto add = [&families](const char* name, const char* help, MetricType type, double value) {
    families.push_back(SingleValue(name, help, type, value));
  };
  ProcessStat stat;
  if (ParseProcessStat(ReadFile("/proc/self/stat"), &stat)) {
    const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
    const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
    add("process_cpu_seconds_total", "User and system CPU time in seconds.", MetricType::Counter,
        static_cast<double>(stat.user_ticks + stat.system_ticks) / ticks_per_second);
    add("process_resident_memory_bytes", "Resident memory in bytes.", MetricType::Gauge,
        static_cast<double>(stat.resident_pages) * page_bytes);
    add("process_virtual_memory_bytes", "Virtual memory in bytes.", MetricType::Gauge,
        static_cast<double>(stat.virtual_bytes));
    add("process_threads", "Threads of the process.", MetricType::Gauge,
        static_cast<double>(stat.threads));
    if (const auto boot = BootTime()) {
      add("process_start_time_seconds", "Start of the process in seconds since the Unix epoch.",
          MetricType::Gauge, *boot + static_cast<double>(stat.start_ticks) / ticks_per_second);
    }
  }
  if (const auto open = OpenFiles()) {
    add("process_open_fds", "Open file descriptors.", MetricType::Gauge,
        static_cast<double>(*open));
  }
  if (rlimit limit; getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    add("process_max_fds", "Most file descriptors the process may open.", MetricType::Gauge,
        static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace nibble::server
