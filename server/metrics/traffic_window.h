// The recent traffic of a device: the sums behind nibble_bandwidth_ratio.
#ifndef NIBBLE_SERVER_METRICS_TRAFFIC_WINDOW_H_
#define NIBBLE_SERVER_METRICS_TRAFFIC_WINDOW_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace nibble::server {

// Sums bytes and device seconds over the last kSeconds of wall time, in steps of one second: what
// was added less than kSeconds - 1 ago counts, what was added kSeconds ago or more does not. Thread
// safe. `now` never goes back by more than the window.
class TrafficWindow {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr int64_t kSeconds = 10;

  // Ignored unless `seconds` is positive and finite.
  void Add(TimePoint now, uint64_t bytes, double seconds);
  // Bytes per second of device time; 0 when nothing was added within the window.
  double BytesPerSecond(TimePoint now) const;

 private:
  struct Slot {
    int64_t second = -1;  // which second of the clock it holds; -1: none yet
    double bytes = 0;
    double seconds = 0;
  };

  mutable std::mutex mutex_;
  std::array<Slot, kSeconds> slots_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_METRICS_TRAFFIC_WINDOW_H_
