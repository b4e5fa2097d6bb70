// How long batches take, learned from those that ran: for each key and size (up to 1, 2, 4, 8, ...
// rows) about what one takes when nothing disturbs it. A plain data structure: no lock, no clock.
#ifndef NIBBLE_SERVER_BATCHER_BATCH_TIMES_H_
#define NIBBLE_SERVER_BATCHER_BATCH_TIMES_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "absl/hash/hash.h"
#include "server/batcher/batcher.h"
#include "server/clock/clock.h"

namespace nibble::server {

class BatchTimes {
 public:
  void Record(const BatchKey& key, int64_t rows, Clock::TimePoint begin, Clock::TimePoint end);

  // The rows of a batch that should take no longer than `least`, or half as long again as
  // `base_rows` (> 0) where that is more; never fewer than base_rows. Sizes that have not run for a
  // while are tried again: base_rows alone, or the next size above those known to be fast enough.
  int64_t RowsWithin(const BatchKey& key, int64_t base_rows, Clock::Duration least,
                     Clock::TimePoint now) const;

  // What a batch of `rows` (> 0) should take, but at most `most`: also where none of that size has
  // run for a while.
  Clock::Duration Expected(const BatchKey& key, int64_t rows, Clock::Duration most,
                           Clock::TimePoint now) const;

 private:
  static constexpr size_t kSizes = 32;
  struct Time {
    double us = 0;
    Clock::TimePoint at = Clock::TimePoint::min();
  };
  using Times = std::array<Time, kSizes>;

  std::unordered_map<BatchKey, Times, absl::Hash<BatchKey>> keys_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_BATCHER_BATCH_TIMES_H_
