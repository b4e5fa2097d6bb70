// What the flags say about numbers that vary: row counts, ranges of loads, arrival times.
#ifndef NIBBLE_CLIENT_LOAD_DISTRIBUTION_H_
#define NIBBLE_CLIENT_LOAD_DISTRIBUTION_H_

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::load {

using Random = std::mt19937_64;

// Rows of a request, drawn independently.
class RowCounts {
 public:
  // "8": always 8. "1,8,64": each equally often. "geometric:8": 1, 2, 3, ... with mean 8, cut off
  // at 16 times the mean. kInvalidArgument for anything else, and for counts outside 1..kMost.
  static absl::StatusOr<RowCounts> Parse(std::string_view text);
  static constexpr int64_t kMost = int64_t{1} << 20;

  int64_t Draw(Random& random) const;
  int64_t largest() const { return largest_; }
  // All requests have as many.
  bool constant() const { return counts_.size() == 1; }

 private:
  RowCounts() = default;

  std::vector<int64_t> counts_;  // empty: geometric
  double mean_ = 0.0;
  int64_t largest_ = 0;
};

// A comma-separated list of numbers and ranges, in the order given: "4", "1,4,16", "1:64:x2" (1, 2,
// 4,
// ... 64) or "100:500:+100". Each is at least `least` and at most `most`; at most 1000 of them.
// Messages name `flag`.
absl::StatusOr<std::vector<double>> ParseNumbers(const std::string& flag, std::string_view text,
                                                 double least, double most);

enum class Arrivals { kConstant, kPoisson };

// The times at which an open loop means to send, in nanoseconds after its start, never falling.
class ArrivalSchedule {
 public:
  // `rate` per second, above 0. Constant: one every 1/rate s, the first at 0. Poisson: independent
  // exponential gaps of mean 1/rate s, the same for a seed.
  ArrivalSchedule(Arrivals arrivals, double rate, uint64_t seed);
  int64_t Next();

 private:
  Arrivals arrivals_;
  double gap_ns_;
  int64_t sent_ = 0;
  double at_ns_ = 0.0;
  Random random_;
};

// `text` matches `pattern`, in which '*' stands for any characters and '?' for one.
bool MatchesPattern(std::string_view pattern, std::string_view text);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_DISTRIBUTION_H_
