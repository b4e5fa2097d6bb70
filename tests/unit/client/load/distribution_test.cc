#include "client/cpp/load/distribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace nibble::load {
namespace {

using ::testing::ElementsAre;

std::string Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

TEST(RowCountsTest, OneCountIsAlwaysThat) {
  const RowCounts rows = RowCounts::Parse("8").value();
  Random random(1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(rows.Draw(random), 8);
  EXPECT_EQ(rows.largest(), 8);
}

TEST(RowCountsTest, AListIsDrawnFromEvenly) {
  const RowCounts rows = RowCounts::Parse("1,8,64").value();
  EXPECT_EQ(rows.largest(), 64);
  Random random(1);
  std::map<int64_t, int> seen;
  for (int i = 0; i < 30000; ++i) ++seen[rows.Draw(random)];
  ASSERT_EQ(seen.size(), 3u);
  for (const int64_t count : {1, 8, 64}) EXPECT_NEAR(seen[count], 10000, 500) << count;
}

TEST(RowCountsTest, AGeometricDistributionHasItsMeanAndItsShape) {
  const RowCounts rows = RowCounts::Parse("geometric:8").value();
  EXPECT_EQ(rows.largest(), 128);
  Random random(1);
  double sum = 0.0;
  int ones = 0;
  constexpr int kDraws = 50000;
  for (int i = 0; i < kDraws; ++i) {
    const int64_t drawn = rows.Draw(random);
    ASSERT_GE(drawn, 1);
    ASSERT_LE(drawn, rows.largest());
    sum += static_cast<double>(drawn);
    ones += drawn == 1 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kDraws, 8.0, 0.15);
  EXPECT_NEAR(static_cast<double>(ones) / kDraws, 1.0 / 8.0, 0.01);
  Random other(1);
  EXPECT_EQ(RowCounts::Parse("geometric:1").value().Draw(other), 1);
}

TEST(RowCountsTest, RefusesWhatIsNoCount) {
  for (const char* text :
       {"", "0", "-1", "1,", "x", "1.5", "1,0", "1048577", "99999999999999999999",
        "geometric:", "geometric:0.5", "geometric:nan", "geometric:1e9", "geometric:2x"}) {
    const auto rows = RowCounts::Parse(text);
    ASSERT_FALSE(rows.ok()) << text;
    EXPECT_EQ(Message(rows.status()).substr(0, 7), "--rows:") << text;
  }
}

TEST(ParseNumbersTest, ReadsNumbersListsAndRanges) {
  EXPECT_THAT(ParseNumbers("--f", "4", 1, 100).value(), ElementsAre(4));
  EXPECT_THAT(ParseNumbers("--f", "16,1,4", 1, 100).value(), ElementsAre(16, 1, 4));
  EXPECT_THAT(ParseNumbers("--f", "1:64:x2", 1, 100).value(), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(ParseNumbers("--f", "10:45:+10", 1, 100).value(), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(ParseNumbers("--f", "3,1:4:x2,0.5", 0.5, 100).value(), ElementsAre(3, 1, 2, 4, 0.5));
}

TEST(ParseNumbersTest, NamesTheFlagAndWhatItReceived) {
  for (const char* text : {"", "0", "101", "a", "1,", "1:4", "1:4:2", "1:4:x1", "1:4:+0", "4:1:x2",
                           "1:200:x2", "1:4:x", "1:4:x2:3", "nan", "1:100:+0.01"}) {
    const auto numbers = ParseNumbers("--flag", text, 1, 100);
    ASSERT_FALSE(numbers.ok()) << text;
    EXPECT_EQ(numbers.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(numbers.status()).find("--flag: "), std::string::npos);
    EXPECT_NE(Message(numbers.status()).find(std::string("received \"") + text + "\""),
              std::string::npos);
  }
}

TEST(ArrivalScheduleTest, ConstantArrivalsAreEvenlySpacedAndDoNotDrift) {
  ArrivalSchedule schedule(Arrivals::kConstant, 3.0, 1);
  int64_t last = 0;
  for (int i = 0; i < 3'000'000; ++i) last = schedule.Next();
  // A third of a second is no whole number of nanoseconds; a sum of rounded gaps would be 1 ms off.
  EXPECT_EQ(last, 999'999'666'666'667);
}

TEST(ArrivalScheduleTest, PoissonArrivalsHaveTheRateAndExponentialGaps) {
  constexpr int kArrivals = 100000;
  ArrivalSchedule schedule(Arrivals::kPoisson, 1000.0, 42);
  int64_t before = 0;
  int longer_than_mean = 0;
  for (int i = 0; i < kArrivals; ++i) {
    const int64_t at = schedule.Next();
    ASSERT_GE(at, before);
    longer_than_mean += at - before > 1'000'000 ? 1 : 0;
    before = at;
  }
  EXPECT_NEAR(static_cast<double>(before) / 1e9, 100.0, 1.5);
  EXPECT_NEAR(static_cast<double>(longer_than_mean) / kArrivals, 0.3679, 0.01);
}

TEST(ArrivalScheduleTest, TheSameSeedGivesTheSameTimes) {
  ArrivalSchedule one(Arrivals::kPoisson, 10.0, 5);
  ArrivalSchedule same(Arrivals::kPoisson, 10.0, 5);
  ArrivalSchedule other(Arrivals::kPoisson, 10.0, 6);
  const int64_t first = one.Next();
  EXPECT_EQ(first, same.Next());
  EXPECT_NE(first, other.Next());
}

TEST(MatchesPatternTest, StarsAndQuestionMarks) {
  EXPECT_TRUE(MatchesPattern("m/*proj", "m/model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(MatchesPattern("*", "a/b"));
  EXPECT_TRUE(MatchesPattern("m/?", "m/1"));
  EXPECT_FALSE(MatchesPattern("m/?", "m/12"));
  EXPECT_FALSE(MatchesPattern("m/*proj", "n/proj"));
}

}  // namespace
}  // namespace nibble::load
