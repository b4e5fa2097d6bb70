#include "client/cpp/load/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace nibble::load {
namespace {

constexpr int kStepBits = 8;  // steps of an octave
constexpr int64_t kSteps = int64_t{1} << kStepBits;

// Octave `shift` holds values whose upper nine bits are [kSteps, 2 kSteps) after a shift right.
int ShiftOf(int64_t value) {
  const int width = std::bit_width(static_cast<uint64_t>(value));
  return std::max(width - kStepBits - 1, 0);
}

size_t BucketOf(int64_t value) {
  const int shift = ShiftOf(value);
  return static_cast<size_t>(shift * kSteps + (value >> shift));
}

int64_t UpperEnd(size_t bucket) {
  const auto index = static_cast<int64_t>(bucket);
  if (index < 2 * kSteps) return index;
  const int64_t shift = index / kSteps - 1;
  const int64_t step = index % kSteps + kSteps;
  return ((step + 1) << shift) - 1;
}

}  // namespace

Histogram::Histogram() : buckets_(BucketOf(kLargest) + 1) {}

void Histogram::Record(int64_t value) {
  value = std::clamp<int64_t>(value, 0, kLargest);
  ++buckets_[BucketOf(value)];
  ++count_;
  max_ = std::max(max_, value);
  sum_ += static_cast<double>(value);
}

void Histogram::Merge(const Histogram& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
}

double Histogram::mean() const { return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_); }

int64_t Histogram::Quantile(double share) const {
  if (count_ == 0) return 0;
  const auto wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
  const int64_t rank = std::clamp<int64_t>(wanted, 1, count_);
  int64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank) return std::min(UpperEnd(i), max_);
  }
  return max_;
}

}  // namespace nibble::load
