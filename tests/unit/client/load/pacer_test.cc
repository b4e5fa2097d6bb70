#include "client/cpp/load/pacer.h"

#include <gtest/gtest.h>

#include <vector>

#include "client/cpp/load/histogram.h"
#include "tests/unit/client/load/fake_load.h"

namespace nibble::load {
namespace {

constexpr int64_t kMs = 1'000'000;

class PacerTest : public ::testing::Test {
 protected:
  // 1000 requests a second, evenly spaced, for `count` of them.
  PaceResult Run(int64_t count, int64_t give_up_lag_ns = 0) {
    ArrivalSchedule schedule(Arrivals::kConstant, 1000.0, 1);
    actions_.wanted = [&, left = count](int64_t) mutable { return left-- > 0; };
    if (!actions_.over) actions_.over = [] { return false; };
    if (!actions_.acquire) actions_.acquire = [this] { return &exchange_; };
    return Pace(schedule, clock_.NowNs(), give_up_lag_ns, clock_, actions_);
  }

  FakeLoadClock clock_;
  Exchange exchange_{0};
  PacerActions actions_;
};

TEST_F(PacerTest, SendsAtTheTimesOfTheSchedule) {
  const int64_t begin_ns = clock_.NowNs();
  std::vector<int64_t> intended;
  std::vector<int64_t> sent;
  actions_.start = [&](Exchange& exchange) {
    intended.push_back(exchange.intended_ns - begin_ns);
    sent.push_back(exchange.sent_ns - begin_ns);
  };
  const PaceResult result = Run(4);
  EXPECT_FALSE(result.given_up);
  EXPECT_EQ(result.unsent, 0);
  EXPECT_EQ(intended, (std::vector<int64_t>{0, kMs, 2 * kMs, 3 * kMs}));
  EXPECT_EQ(sent, intended);
}

// Coordinated omission: while the only connection is stalled for 100 ms, a hundred requests fall
// due. All of them are sent, and all of them say how long they really took.
TEST_F(PacerTest, AStallShowsInTheLatencyOfEveryRequestThatItHeldUp) {
  Histogram latency_ns;
  int number = 0;
  actions_.start = [&](Exchange& exchange) {
    if (number++ == 500) clock_.Advance(100 * kMs);  // the server stalls once
    latency_ns.Record(clock_.NowNs() - exchange.intended_ns);
  };
  Run(1000);
  EXPECT_EQ(latency_ns.count(), 1000);
  EXPECT_EQ(latency_ns.max(), 100 * kMs);
  // The stalled one and the 99 due behind it: a tenth of all requests, 1 to 100 ms late.
  EXPECT_EQ(latency_ns.Quantile(0.90), 0);
  EXPECT_NEAR(static_cast<double>(latency_ns.Quantile(0.95)), 50.0 * kMs, 1.0 * kMs);
  EXPECT_NEAR(static_cast<double>(latency_ns.Quantile(0.99)), 90.0 * kMs, 1.0 * kMs);
}

TEST_F(PacerTest, WaitingForAFreeExchangeIsLatenessToo) {
  std::vector<int64_t> lag_ns;
  actions_.acquire = [&] {
    clock_.Advance(3 * kMs);  // until one is free
    return &exchange_;
  };
  actions_.start = [&](Exchange& exchange) {
    lag_ns.push_back(exchange.sent_ns - exchange.intended_ns);
  };
  Run(3);
  EXPECT_EQ(lag_ns, (std::vector<int64_t>{3 * kMs, 5 * kMs, 7 * kMs}));
}

TEST_F(PacerTest, GivesUpOnceItIsTooLate) {
  int sent = 0;
  actions_.start = [&](Exchange&) {
    ++sent;
    clock_.Advance(2 * kMs);
  };
  const PaceResult result = Run(1000, 10 * kMs);
  EXPECT_TRUE(result.given_up);
  EXPECT_EQ(sent, 12);  // the twelfth is 11 ms late
}

TEST_F(PacerTest, CountsWhatItCouldNotSend) {
  int free = 2;
  actions_.acquire = [&] { return free-- > 0 ? &exchange_ : nullptr; };
  int sent = 0;
  actions_.start = [&](Exchange&) { ++sent; };
  const PaceResult result = Run(7);
  EXPECT_EQ(sent, 2);
  EXPECT_EQ(result.unsent, 5);
}

TEST_F(PacerTest, EndsBetweenArrivalsOnceTheLoadIsOver) {
  const int64_t begin_ns = clock_.NowNs();
  ArrivalSchedule schedule(Arrivals::kConstant, 0.001, 1);  // the second after 1000 s
  int sent = 0;
  actions_.wanted = [](int64_t) { return true; };
  actions_.over = [&] { return sent > 0 && clock_.NowNs() >= begin_ns + 200 * kMs; };
  actions_.acquire = [this] { return &exchange_; };
  actions_.start = [&](Exchange&) { ++sent; };
  Pace(schedule, begin_ns, 0, clock_, actions_);
  EXPECT_EQ(sent, 1);
  EXPECT_EQ(clock_.NowNs(), begin_ns + 200 * kMs);
}

TEST(MonotonicClockTest, DoesNotReturnBeforeTheTime) {
  MonotonicClock clock;
  const int64_t until_ns = clock.NowNs() + kMs;
  clock.SleepUntil(until_ns);
  EXPECT_GE(clock.NowNs(), until_ns);
  clock.SleepUntil(until_ns);  // in the past: at once
}

}  // namespace
}  // namespace nibble::load
