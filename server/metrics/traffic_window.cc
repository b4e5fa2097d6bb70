#include "server/metrics/traffic_window.h"

#include <cmath>

namespace nibble::server {
namespace {

int64_t SecondOf(TrafficWindow::TimePoint time) {
  return std::chrono::floor<std::chrono::seconds>(time).time_since_epoch().count();
}

}  // namespace

void TrafficWindow::Add(TimePoint now, uint64_t bytes, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  const int64_t second = SecondOf(now);
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[static_cast<size_t>(second % kSeconds)];
  if (slot.second != second) slot = {.second = second};
  slot.bytes += static_cast<double>(bytes);
  slot.seconds += seconds;
}

double TrafficWindow::BytesPerSecond(TimePoint now) const {
  const int64_t oldest = SecondOf(now) - kSeconds + 1;
  double bytes = 0;
  double seconds = 0;
  std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (slot.second < 0 || slot.second < oldest) continue;
    bytes += slot.bytes;
    seconds += slot.seconds;
  }
  return seconds > 0 ? bytes / seconds : 0;
}

}  // namespace nibble::server
