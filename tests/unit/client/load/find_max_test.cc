#include "client/cpp/load/find_max.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/cpp/load/histogram.h"
#include "client/cpp/load/ledger.h"
#include "tests/unit/client/load/fake_load.h"

namespace nibble::load {
namespace {

using ::testing::HasSubstr;

// A server with a queue in front of one worker of constant service time, on a fake clock: what a
// probe of it finds is computed by pacing real arrivals against it.
class QueueServer {
 public:
  explicit QueueServer(int64_t service_ns) : service_ns_(service_ns) {}

  Probe At(double rate) const {
    constexpr int64_t kRequests = 4000;
    FakeLoadClock clock;
    const int64_t begin_ns = clock.NowNs();
    ArrivalSchedule schedule(Arrivals::kPoisson, rate, 3);
    Measurement measurement(begin_ns, kRequests);
    Histogram latency_ns;
    int64_t free_ns = begin_ns;
    Exchange exchange(0);
    const PacerActions actions = {
        .wanted = [&](int64_t intended_ns) { return measurement.Wants(intended_ns); },
        .over = [] { return false; },
        .acquire = [&] { return &exchange; },
        .start =
            [&](Exchange& sent) {
              free_ns = std::max(free_ns, sent.sent_ns) + service_ns_;
              latency_ns.Record(free_ns - sent.intended_ns);
            }};
    Pace(schedule, begin_ns, 0, clock, actions);
    Probe probe;
    probe.seconds = static_cast<double>(clock.NowNs() - begin_ns) / 1e9;
    probe.offered_rate = kRequests / (static_cast<double>(clock.NowNs() - begin_ns) / 1e9);
    probe.achieved_rate = kRequests / (static_cast<double>(free_ns - begin_ns) / 1e9);
    probe.p99_ms = static_cast<double>(latency_ns.Quantile(0.99)) / 1e6;
    return probe;
  }

 private:
  const int64_t service_ns_;
};

FindMaxOptions Options(double p99_ms, double start_rate) {
  FindMaxOptions options;
  options.p99_ms = p99_ms;
  options.start_rate = start_rate;
  return options;
}

void Ignore(const FindMaxStep&) {}

TEST(FindMaxTest, FindsTheKneeOfAQueue) {
  const QueueServer server(1'000'000);  // at most 1000 requests a second
  const FindMaxOptions options = Options(10.0, 100.0);
  const FindMaxResult found = FindMax(
                                  options, [&](double rate) { return server.At(rate); }, Ignore)
                                  .value();
  EXPECT_GT(found.rate, 500.0);
  EXPECT_LT(found.rate, 1000.0);
  EXPECT_LE(found.failed_rate, found.rate * 1.05);
  EXPECT_TRUE(MissOf(server.At(found.rate), options).empty());
  EXPECT_FALSE(MissOf(server.At(found.failed_rate), options).empty());
}

TEST(FindMaxTest, EndsAtTheSameRateFromAbove) {
  const QueueServer server(1'000'000);
  const auto probe = [&](double rate) { return server.At(rate); };
  const double from_below = FindMax(Options(10.0, 50.0), probe, Ignore)->rate;
  const double from_above = FindMax(Options(10.0, 50000.0), probe, Ignore)->rate;
  EXPECT_NEAR(from_above / from_below, 1.0, 0.06);
}

TEST(FindMaxTest, ALooserTargetAllowsAHigherRate) {
  const QueueServer server(1'000'000);
  const auto probe = [&](double rate) { return server.At(rate); };
  EXPECT_GT(FindMax(Options(50.0, 100.0), probe, Ignore)->rate,
            FindMax(Options(3.0, 100.0), probe, Ignore)->rate * 1.1);
}

TEST(FindMaxTest, OneMissIsNotBelieved) {
  int probes = 0;
  FindMaxOptions options = Options(5.0, 100.0);
  options.max_steps = 4;
  const auto probe = [&](double rate) {
    return Probe{.seconds = 1.0,
                 .offered_rate = rate,
                 .achieved_rate = rate,
                 .p99_ms = ++probes == 2 ? 9.0 : 1.0};
  };
  const FindMaxResult found = FindMax(options, probe, Ignore).value();
  ASSERT_EQ(found.steps.size(), 4u);
  EXPECT_FALSE(found.steps[1].passed);
  EXPECT_EQ(found.steps[1].rate, 200.0);
  EXPECT_EQ(found.steps[2].rate, 200.0);
  EXPECT_TRUE(found.steps[2].passed);
  EXPECT_EQ(found.rate, 400.0);
  EXPECT_EQ(found.failed_rate, 0.0);
}

TEST(FindMaxTest, StepsAreShownWithTheirReason) {
  std::vector<FindMaxStep> steps;
  const auto probe = [](double rate) {
    return Probe{.seconds = 1.0,
                 .offered_rate = rate,
                 .achieved_rate = rate,
                 .p99_ms = rate > 150.0 ? 9.0 : 1.0};
  };
  FindMaxOptions options = Options(5.0, 100.0);
  options.attempts = 1;
  const auto keep = [&](const FindMaxStep& step) { steps.push_back(step); };
  const FindMaxResult found = FindMax(options, probe, keep).value();
  ASSERT_GE(steps.size(), 3u);
  EXPECT_EQ(steps[0].rate, 100.0);
  EXPECT_TRUE(steps[0].passed);
  EXPECT_EQ(steps[1].rate, 200.0);
  EXPECT_FALSE(steps[1].passed);
  EXPECT_THAT(steps[1].reason, HasSubstr("p99"));
  EXPECT_DOUBLE_EQ(steps[2].rate, std::sqrt(100.0 * 200.0));
  EXPECT_NEAR(found.rate, 150.0, 8.0);
  EXPECT_EQ(found.steps.size(), steps.size());
}

TEST(FindMaxTest, SaysWhyAProbeMisses) {
  const FindMaxOptions options = Options(5.0, 1.0);
  const Probe good{.seconds = 10.0, .offered_rate = 100.0, .achieved_rate = 99.0, .p99_ms = 5.0};
  EXPECT_EQ(MissOf(good, options), "");
  Probe probe = good;
  probe.p99_ms = 5.01;
  EXPECT_EQ(MissOf(probe, options), "p99 above the target");
  probe = good;
  probe.achieved_rate = 90.0;
  EXPECT_EQ(MissOf(probe, options), "90 % of the offered rate");
  // Of ten requests the last one may be in flight at the end, but not the last two.
  probe = Probe{.seconds = 0.1, .offered_rate = 100.0, .achieved_rate = 90.0, .p99_ms = 5.0};
  EXPECT_EQ(MissOf(probe, options), "");
  probe.achieved_rate = 80.0;
  EXPECT_EQ(MissOf(probe, options), "80 % of the offered rate");
  probe = good;
  probe.error_share = 0.01;
  EXPECT_EQ(MissOf(probe, options), "1 % errors");
  probe = good;
  probe.given_up = true;
  EXPECT_EQ(MissOf(probe, options), "fell behind");
  EXPECT_EQ(MissOf(Probe{}, options), "no answers");
}

TEST(FindMaxTest, FindsNothingWhereEveryRateMisses) {
  const FindMaxResult found =
      FindMax(
          Options(5.0, 100.0),
          [](double rate) {
            return Probe{
                .seconds = 1.0, .offered_rate = rate, .achieved_rate = rate, .p99_ms = 6.0};
          },
          Ignore)
          .value();
  EXPECT_EQ(found.rate, 0.0);
  EXPECT_LT(found.failed_rate, 0.02);
}

TEST(FindMaxTest, IsBoundedWhereEveryRatePasses) {
  FindMaxOptions options = Options(5.0, 100.0);
  options.max_steps = 6;
  const FindMaxResult found =
      FindMax(
          options,
          [](double rate) {
            return Probe{
                .seconds = 1.0, .offered_rate = rate, .achieved_rate = rate, .p99_ms = 1.0};
          },
          Ignore)
          .value();
  EXPECT_EQ(found.steps.size(), 6u);
  EXPECT_EQ(found.rate, 3200.0);
  EXPECT_EQ(found.failed_rate, 0.0);
}

TEST(FindMaxTest, AnErrorOfAProbeEndsTheSearch) {
  const auto found = FindMax(
      Options(5.0, 100.0),
      [](double) -> absl::StatusOr<Probe> { return absl::UnavailableError("gone"); }, Ignore);
  EXPECT_EQ(found.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(FindMax(
                   Options(5.0, 0.0), [](double) { return Probe{}; }, Ignore)
                   .ok());
}

}  // namespace
}  // namespace nibble::load
