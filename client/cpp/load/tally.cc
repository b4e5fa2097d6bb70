#include "client/cpp/load/tally.h"

#include <algorithm>
#include <array>

namespace nibble::load {
namespace {

double SpreadPercent(const std::array<double, Stability::kWindows>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  double sum = 0.0;
  for (const double value : values) sum += value;
  if (sum <= 0.0) return 0.0;
  return 100.0 * (*most - *least) / (sum / static_cast<double>(values.size()));
}

}  // namespace

int64_t Tally::failures() const {
  int64_t sum = 0;
  for (const auto& [code, error] : errors) sum += error.count;
  return sum;
}

void Volume::Add(const Volume& other) {
  answers += other.answers;
  rows += other.rows;
  request_bytes += other.request_bytes;
  reply_bytes += other.reply_bytes;
}

void Tally::Merge(const Tally& other) {
  volume.Add(other.volume);
  requests += other.requests;
  last_ns = std::max(last_ns, other.last_ns);
  latency_ns.Merge(other.latency_ns);
  send_lag_ns.Merge(other.send_lag_ns);
  queue_us.Merge(other.queue_us);
  compute_us.Merge(other.compute_us);
  batch_rows.Merge(other.batch_rows);
  for (const auto& [kernel, count] : other.kernels) kernels[kernel] += count;
  checked += other.checked;
  mismatches += other.mismatches;
  if (first_mismatch.empty()) first_mismatch = other.first_mismatch;
  for (const auto& [code, error] : other.errors) {
    ErrorCount& mine = errors[code];
    mine.count += error.count;
    if (mine.message.empty()) mine.message = error.message;
  }
}

Stability StabilityOf(const std::vector<Window>& windows, double percent) {
  Stability stability;
  if (windows.size() < Stability::kWindows) return stability;
  std::array<double, Stability::kWindows> rates{};
  std::array<double, Stability::kWindows> p99s{};
  bool answered = true;
  for (size_t i = 0; i < Stability::kWindows; ++i) {
    const Window& window = windows[windows.size() - Stability::kWindows + i];
    rates[i] = window.rate();
    p99s[i] = static_cast<double>(window.p99_ns);
    answered = answered && window.answers > 0;
  }
  stability.rate_spread_percent = SpreadPercent(rates);
  stability.p99_spread_percent = SpreadPercent(p99s);
  stability.stable = answered && stability.rate_spread_percent <= percent &&
                     stability.p99_spread_percent <= percent;
  return stability;
}

}  // namespace nibble::load
