#include "client/cpp/load/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace nibble::load {
namespace {

TEST(HistogramTest, IsEmptyAtFirst) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.max(), 0);
  EXPECT_EQ(histogram.mean(), 0.0);
  EXPECT_EQ(histogram.Quantile(0.5), 0);
}

TEST(HistogramTest, HoldsSmallValuesExactly) {
  Histogram histogram;
  for (int64_t value = 0; value < 512; ++value) histogram.Record(value);
  for (int64_t value = 0; value < 512; ++value) {
    EXPECT_EQ(histogram.Quantile(static_cast<double>(value + 1) / 512.0), value);
  }
}

TEST(HistogramTest, ReportsEveryMagnitudeWithinItsErrorAndNeverBelow) {
  for (int64_t base = 1; base < Histogram::kLargest / 4; base = base * 3 / 2 + 1) {
    for (const int64_t value : {base - 1, base, base + 1}) {
      Histogram histogram;
      histogram.Record(value);
      histogram.Record(Histogram::kLargest);  // so that the largest does not cap the answer
      const int64_t reported = histogram.Quantile(0.5);
      EXPECT_GE(reported, value);
      EXPECT_LE(static_cast<double>(reported - value),
                Histogram::kRelativeError * static_cast<double>(value));
    }
  }
}

TEST(HistogramTest, QuantilesOfManyValuesAreThoseOfTheSortedList) {
  Histogram histogram;
  std::vector<int64_t> values;
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> distribution(13.0, 1.5);
  for (int i = 0; i < 20000; ++i) {
    values.push_back(static_cast<int64_t>(distribution(random)));
    histogram.Record(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double share : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.99995}) {
    const auto rank = static_cast<size_t>(std::ceil(share * 20000.0));
    const int64_t exact = values[rank - 1];
    EXPECT_GE(histogram.Quantile(share), exact) << share;
    EXPECT_LE(static_cast<double>(histogram.Quantile(share)),
              (1.0 + Histogram::kRelativeError) * static_cast<double>(exact))
        << share;
  }
  EXPECT_EQ(histogram.Quantile(1.0), values.back());
  EXPECT_EQ(histogram.max(), values.back());
}

TEST(HistogramTest, MeanIsExact) {
  Histogram histogram;
  histogram.Record(1'000'000'007);
  histogram.Record(3);
  EXPECT_DOUBLE_EQ(histogram.mean(), 500'000'005.0);
}

TEST(HistogramTest, ClampsWhatLiesOutside) {
  Histogram histogram;
  histogram.Record(-5);
  EXPECT_EQ(histogram.Quantile(1.0), 0);
  histogram.Record(INT64_MAX);
  EXPECT_EQ(histogram.max(), Histogram::kLargest);
  EXPECT_EQ(histogram.Quantile(1.0), Histogram::kLargest);
}

TEST(HistogramTest, MergingIsRecordingInOne) {
  Histogram left;
  Histogram right;
  Histogram both;
  for (int64_t value = 1; value < 3'000'000; value = value * 2 + 1) {
    (value % 3 == 0 ? left : right).Record(value);
    both.Record(value);
  }
  left.Merge(right);
  EXPECT_EQ(left.count(), both.count());
  EXPECT_EQ(left.max(), both.max());
  EXPECT_DOUBLE_EQ(left.mean(), both.mean());
  for (const double share : {0.1, 0.5, 0.9, 1.0}) {
    EXPECT_EQ(left.Quantile(share), both.Quantile(share));
  }
}

}  // namespace
}  // namespace nibble::load
