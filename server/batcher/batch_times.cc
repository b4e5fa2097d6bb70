#include "server/batcher/batch_times.h"

#include <algorithm>
#include <bit>

namespace nibble::server {
namespace {

using std::chrono::seconds;

// Of the keys whose times are kept. Versions come and go; what is dropped is learned again.
constexpr size_t kMaxKeys = 4096;
constexpr double kWeight = 0.25;
constexpr Clock::Duration kMemory = seconds(10);
constexpr double kMostOfBase = 2;

// 2^size is the smallest power of two that is not below `rows`.
size_t SizeOf(int64_t rows) { return std::bit_width(static_cast<uint64_t>(rows - 1)); }
int64_t RowsOf(size_t size) { return int64_t{1} << size; }

}  // namespace

void BatchTimes::Record(const BatchKey& key, int64_t rows, Clock::TimePoint begin,
                        Clock::TimePoint end) {
  const size_t size = SizeOf(rows);
  if (size >= kSizes) return;
  if (keys_.size() >= kMaxKeys && !keys_.contains(key)) keys_.clear();
  Mean& mean = keys_[key][size];
  const double us = MicrosecondsBetween(begin, end);
  mean.us = mean.at == Clock::TimePoint::min() ? us : mean.us + kWeight * (us - mean.us);
  mean.at = end;
}

int64_t BatchTimes::RowsWithin(const BatchKey& key, int64_t base_rows, Clock::Duration least,
                               Clock::TimePoint now) const {
  const auto found = keys_.find(key);
  size_t size = SizeOf(base_rows);
  if (found == keys_.end() || size >= kSizes) return base_rows;
  const Means& means = found->second;
  const auto known = [&](size_t of) {
    return means[of].at != Clock::TimePoint::min() && now - means[of].at < kMemory;
  };
  if (!known(size)) return base_rows;
  const double us =
      std::max(MicrosecondsBetween({}, Clock::TimePoint(least)), kMostOfBase * means[size].us);
  while (known(size) && size + 1 < kSizes) {
    const Mean& next = means[size + 1];
    if (known(size + 1) && next.us > us) {
      // Between the two, as if the time grew evenly.
      const double part = (us - means[size].us) / (next.us - means[size].us);
      const auto more = static_cast<int64_t>(part * static_cast<double>(RowsOf(size)));
      return std::max(base_rows, RowsOf(size) + more);
    }
    ++size;
  }
  return std::max(base_rows, RowsOf(size));
}

}  // namespace nibble::server
