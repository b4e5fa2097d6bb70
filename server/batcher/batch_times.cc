#include "server/batcher/batch_times.h"

#include <algorithm>
#include <bit>

namespace nibble::server {
namespace {

using std::chrono::seconds;

// Of the keys whose times are kept. Versions come and go; what is dropped is learned again.
constexpr size_t kMaxKeys = 4096;
// A batch that was slower than the others was probably disturbed, a faster one was not.
constexpr double kWeightOfSlower = 0.05;
constexpr double kWeightOfFaster = 0.5;
// The base decides the rest and costs little to run again, a size that may be too slow costs more.
constexpr Clock::Duration kMemoryOfBase = seconds(1);
constexpr Clock::Duration kMemory = seconds(10);
constexpr double kMostOfBase = 1.5;

// 2^size is the smallest power of two that is not below `rows`.
size_t SizeOf(int64_t rows) { return std::bit_width(static_cast<uint64_t>(rows - 1)); }
int64_t RowsOf(size_t size) { return int64_t{1} << size; }

}  // namespace

void BatchTimes::Record(const BatchKey& key, int64_t rows, Clock::TimePoint begin,
                        Clock::TimePoint end) {
  const size_t size = SizeOf(rows);
  if (size >= kSizes) return;
  if (keys_.size() >= kMaxKeys && !keys_.contains(key)) keys_.clear();
  Time& time = keys_[key][size];
  const double us = MicrosecondsBetween(begin, end);
  const double weight = us > time.us ? kWeightOfSlower : kWeightOfFaster;
  time.us = time.at == Clock::TimePoint::min() ? us : time.us + weight * (us - time.us);
  time.at = end;
}

int64_t BatchTimes::RowsWithin(const BatchKey& key, int64_t base_rows, Clock::Duration least,
                               Clock::TimePoint now) const {
  const auto found = keys_.find(key);
  size_t size = SizeOf(base_rows);
  if (found == keys_.end() || size >= kSizes) return base_rows;
  const Times& times = found->second;
  const auto known = [&](size_t of, Clock::Duration memory) {
    return times[of].at != Clock::TimePoint::min() && now - times[of].at < memory;
  };
  if (!known(size, kMemoryOfBase)) return base_rows;
  // No longer than a larger one: those run more often, so that less of the disturbance is in them.
  double base_us = times[size].us;
  for (size_t larger = size + 1; larger < kSizes; ++larger) {
    if (known(larger, kMemory)) base_us = std::min(base_us, times[larger].us);
  }
  const double us =
      std::max(MicrosecondsBetween({}, Clock::TimePoint(least)), kMostOfBase * base_us);
  while (known(size, kMemory) && size + 1 < kSizes) {
    const Time& next = times[size + 1];
    if (known(size + 1, kMemory) && next.us > us) {
      // Between the two, as if the time grew evenly.
      const double here_us = std::min(times[size].us, us);
      const double part = std::min(1.0, (us - here_us) / (next.us - here_us));
      const auto more = static_cast<int64_t>(part * static_cast<double>(RowsOf(size)));
      return std::max(base_rows, RowsOf(size) + more);
    }
    ++size;
  }
  return std::max(base_rows, RowsOf(size));
}

Clock::Duration BatchTimes::Expected(const BatchKey& key, int64_t rows, Clock::Duration most,
                                     Clock::TimePoint now) const {
  const auto found = keys_.find(key);
  const size_t size = SizeOf(rows);
  if (found == keys_.end() || size >= kSizes) return most;
  const Time& time = found->second[size];
  if (time.at == Clock::TimePoint::min() || now - time.at >= kMemory) return most;
  return std::min(most, std::chrono::duration_cast<Clock::Duration>(
                            std::chrono::duration<double, std::micro>(time.us)));
}

}  // namespace nibble::server
