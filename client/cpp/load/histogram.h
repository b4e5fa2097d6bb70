// Counts of values with a bounded relative error, in a fixed amount of memory.
#ifndef NIBBLE_CLIENT_LOAD_HISTOGRAM_H_
#define NIBBLE_CLIENT_LOAD_HISTOGRAM_H_

#include <cstdint>
#include <vector>

namespace nibble::load {

// Buckets as in HdrHistogram: values below 512 have one each, larger ones share a bucket with those
// of the same leading nine bits. A quantile is the upper end of its bucket, so it is never below
// the value that was recorded and above it by less than 1/256 of it. Not thread safe.
class Histogram {
 public:
  static constexpr double kRelativeError = 1.0 / 256.0;
  // Values above are counted as this one; in nanoseconds nearly five hours.
  static constexpr int64_t kLargest = (int64_t{1} << 44) - 1;

  Histogram();

  // Negative values count as 0.
  void Record(int64_t value);
  void Merge(const Histogram& other);

  int64_t count() const { return count_; }
  // Exact; 0 without values.
  int64_t max() const { return max_; }
  double mean() const;
  // The smallest value (see above for its error) that at least `share` of the values do not exceed;
  // at most max(). 0 without values.
  int64_t Quantile(double share) const;

 private:
  std::vector<int64_t> buckets_;
  int64_t count_ = 0;
  int64_t max_ = 0;
  double sum_ = 0.0;
};

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_HISTOGRAM_H_
