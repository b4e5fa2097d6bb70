#include "client/cpp/load/tally.h"

#include <gtest/gtest.h>

#include "client/cpp/load/ledger.h"

namespace nibble::load {
namespace {

constexpr int64_t kBegin = 1000;

Exchange* Ended(Exchange& exchange, int64_t intended_ns, const std::string& code = "") {
  exchange.intended_ns = intended_ns;
  exchange.sent_ns = intended_ns + 5;
  exchange.draw.rows = 3;
  exchange.answer = {};
  exchange.answer.code = code;
  exchange.answer.kernel = "k";
  exchange.answer.batch_rows = 12;
  exchange.answer.request_bytes = 100;
  exchange.answer.reply_bytes = 200;
  return &exchange;
}

TEST(LedgerTest, CountsLatencyFromTheIntendedTime) {
  Exchange exchange(0);
  Ledger ledger(kBegin, true);
  ledger.Record(*Ended(exchange, 1100), 1400, false, "");
  const Tally tally = ledger.Take();
  EXPECT_EQ(tally.latency_ns.max(), 300);
  EXPECT_EQ(tally.send_lag_ns.max(), 5);
  EXPECT_EQ(tally.requests, 1);
  EXPECT_EQ(tally.volume.answers, 1);
  EXPECT_EQ(tally.volume.rows, 3);
  EXPECT_EQ(tally.volume.request_bytes, 100);
  EXPECT_EQ(tally.volume.reply_bytes, 200);
  EXPECT_EQ(tally.batch_rows.max(), 12);
  EXPECT_EQ(tally.kernels.at("k"), 1);
  EXPECT_EQ(ledger.Take().requests, 0);
}

TEST(LedgerTest, LeavesTheWarmUpOut) {
  Exchange exchange(0);
  Ledger ledger(kBegin, false);
  ledger.Record(*Ended(exchange, 900), 990, false, "");  // before: nothing
  ledger.Record(*Ended(exchange, 900, "UNAVAILABLE"), 990, false, "");
  // Answered within the measurement: part of its rate, not of its latency.
  ledger.Record(*Ended(exchange, 900), 1010, false, "");
  // Failed within it: that is not forgotten.
  ledger.Record(*Ended(exchange, 900, "DEADLINE_EXCEEDED"), 1020, false, "");
  const Tally tally = ledger.Take();
  EXPECT_EQ(tally.volume.answers, 1);
  EXPECT_EQ(tally.latency_ns.count(), 0);
  EXPECT_EQ(tally.requests, 1);
  EXPECT_EQ(tally.failures(), 1);
}

TEST(LedgerTest, KeepsErrorsApartByCodeWithTheFirstMessage) {
  Exchange exchange(0);
  Ledger ledger(kBegin, false);
  Ended(exchange, 1100, "RESOURCE_EXHAUSTED")->answer.message = "queue full";
  ledger.Record(exchange, 1200, false, "");
  exchange.answer.message = "another";
  ledger.Record(exchange, 1300, false, "");
  ledger.Record(*Ended(exchange, 1100, "UNAVAILABLE"), 1300, false, "");
  ledger.RecordUnsent(4);
  const Tally tally = ledger.Take();
  EXPECT_EQ(tally.requests, 7);
  EXPECT_EQ(tally.failures(), 7);
  EXPECT_EQ(tally.errors.at("RESOURCE_EXHAUSTED").count, 2);
  EXPECT_EQ(tally.errors.at("RESOURCE_EXHAUSTED").message, "queue full");
  EXPECT_EQ(tally.errors.at("UNSENT").count, 4);
  EXPECT_EQ(tally.latency_ns.count(), 0);
  EXPECT_EQ(tally.volume.answers, 0);
}

TEST(LedgerTest, CountsComparisonsAndMismatches) {
  Exchange exchange(0);
  Ledger ledger(kBegin, false);
  ledger.Record(*Ended(exchange, 1100), 1200, true, "");
  ledger.Record(exchange, 1200, true, "first");
  ledger.Record(exchange, 1200, false, "a reply of the wrong shape");
  const Tally tally = ledger.Take();
  EXPECT_EQ(tally.checked, 2);
  EXPECT_EQ(tally.mismatches, 2);
  EXPECT_EQ(tally.first_mismatch, "first");
}

TEST(MeasurementTest, HandsOutExactlyTheRequestsOfTheMeasurement) {
  Measurement measurement(kBegin, 3);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(measurement.Wants(kBegin - 1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(measurement.Wants(kBegin + i));
  EXPECT_FALSE(measurement.over());
  EXPECT_FALSE(measurement.Wants(kBegin + 9));
  EXPECT_TRUE(measurement.over());
  EXPECT_EQ(measurement.wanted(), 3);
  EXPECT_EQ(measurement.OverFor(kBegin + 19), 10);
}

TEST(MeasurementTest, EndsInTimeAndStillTakesWhatWasDueBefore) {
  Measurement measurement(kBegin, 0);
  EXPECT_TRUE(measurement.Wants(kBegin + 500));
  measurement.End(kBegin + 1000);
  EXPECT_TRUE(measurement.over());
  EXPECT_TRUE(measurement.Wants(kBegin + 999));  // a backlog of an open loop
  EXPECT_FALSE(measurement.Wants(kBegin + 1000));
  EXPECT_EQ(measurement.OverFor(kBegin + 1700), 700);
}

TEST(TallyTest, MergesEverything) {
  Exchange exchange(0);
  Ledger one(kBegin, true);
  Ledger other(kBegin, true);
  one.Record(*Ended(exchange, 1100), 1200, true, "");
  other.Record(*Ended(exchange, 1100), 1500, true, "wrong");
  other.Record(*Ended(exchange, 1100, "UNKNOWN"), 1500, false, "");
  Tally merged = one.Take();
  merged.Merge(other.Take());
  EXPECT_EQ(merged.volume.answers, 2);
  EXPECT_EQ(merged.volume.rows, 6);
  EXPECT_EQ(merged.requests, 3);
  EXPECT_EQ(merged.last_ns, 1500);
  EXPECT_EQ(merged.latency_ns.count(), 2);
  EXPECT_EQ(merged.latency_ns.max(), 400);
  EXPECT_EQ(merged.kernels.at("k"), 2);
  EXPECT_EQ(merged.checked, 2);
  EXPECT_EQ(merged.first_mismatch, "wrong");
  EXPECT_EQ(merged.errors.at("UNKNOWN").count, 1);
}

Window Of(int64_t answers, int64_t p99_ns) { return {1.0, answers, 0, p99_ns}; }

TEST(StabilityTest, LooksAtTheLastThreeWindows) {
  const std::vector<Window> windows = {Of(5, 900), Of(100, 50), Of(104, 51), Of(100, 52)};
  const Stability stability = StabilityOf(windows, 5.0);
  EXPECT_TRUE(stability.stable);
  EXPECT_NEAR(stability.rate_spread_percent, 100.0 * 4.0 / (304.0 / 3.0), 1e-9);
  EXPECT_NEAR(stability.p99_spread_percent, 100.0 * 2.0 / 51.0, 1e-9);
}

TEST(StabilityTest, NeedsBothASteadyRateAndASteadyTail) {
  EXPECT_FALSE(StabilityOf({Of(100, 50), Of(120, 50), Of(100, 50)}, 10.0).stable);
  EXPECT_FALSE(StabilityOf({Of(100, 50), Of(100, 90), Of(100, 50)}, 10.0).stable);
}

TEST(StabilityTest, TooFewWindowsOrNoAnswersAreNotStable) {
  EXPECT_FALSE(StabilityOf({Of(100, 50), Of(100, 50)}, 10.0).stable);
  EXPECT_FALSE(StabilityOf({Of(0, 0), Of(0, 0), Of(0, 0)}, 10.0).stable);
}

}  // namespace
}  // namespace nibble::load
