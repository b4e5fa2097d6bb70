// Runs against senders without a network: real threads and a real clock, bounded by requests.
#include "client/cpp/load/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <vector>

#include "tests/unit/client/load/fake_load.h"

namespace nibble::load {
namespace {

const std::set<size_t> kFirstFour = {0, 1, 2, 3};

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    actions_.draw = [](Random& random) {
      return Draw{.layer = 0, .rows = 1 + static_cast<int64_t>(random() % 2), .first_row = 0};
    };
    actions_.compare = [](const Draw&, const std::string&) { return std::string(); };
  }

  FakeSender& AddSender() {
    auto sender = std::make_unique<FakeSender>();
    FakeSender& made = *sender;
    senders_.push_back(std::move(sender));
    return made;
  }

  RunResult RunPlanned(const RunPlan& plan) { return load::Run(plan, senders_, clock_, actions_); }

  static RunPlan Closed(int64_t callers, int64_t requests) {
    RunPlan plan;
    plan.concurrency = callers;
    plan.requests = requests;
    return plan;
  }
  static RunPlan Open(double rate, int64_t requests) {
    RunPlan plan;
    plan.concurrency = 0;
    plan.rate = rate;
    plan.requests = requests;
    return plan;
  }

  MonotonicClock clock_;
  RunActions actions_;
  std::vector<std::unique_ptr<Sender>> senders_;
};

TEST_F(RunTest, AClosedLoopSendsExactlyTheRequestsAskedFor) {
  AddSender();
  AddSender();
  const RunResult result = RunPlanned(Closed(7, 1000));
  EXPECT_EQ(result.total.requests, 1000);
  EXPECT_EQ(result.total.latency_ns.count(), 1000);
  EXPECT_EQ(result.arrived.answers, 1000);
  EXPECT_EQ(result.error_share(), 0.0);
  EXPECT_GT(result.arrived.rows, 1000);
  EXPECT_GT(result.seconds, 0.0);
  EXPECT_DOUBLE_EQ(result.answer_rate(), 1000.0 / result.seconds);
}

TEST_F(RunTest, AClosedLoopHasAsManyRequestsInFlightAsCallers) {
  FakeSender& sender = AddSender();
  std::set<size_t> numbers;
  sender.answer = [&](Exchange& exchange) { numbers.insert(exchange.number()); };
  RunPlanned(Closed(5, 100));
  EXPECT_EQ(numbers, (std::set<size_t>{0, 1, 2, 3, 4}));
}

TEST_F(RunTest, AnOpenLoopSendsExactlyTheRequestsAskedFor) {
  AddSender();
  AddSender();
  const RunResult result = RunPlanned(Open(50000.0, 2000));
  EXPECT_EQ(result.total.requests, 2000);
  EXPECT_EQ(result.arrived.answers, 2000);
  EXPECT_EQ(result.total.send_lag_ns.count(), 2000);
  EXPECT_FALSE(result.given_up);
}

TEST_F(RunTest, AnOpenLoopUsesEveryConnection) {
  FakeSender& sender = AddSender();
  std::set<size_t> numbers;
  sender.answer = [&](Exchange& exchange) { numbers.insert(exchange.number()); };
  RunPlan plan = Open(1000.0, 8);
  plan.least_exchanges = 4;
  RunPlanned(plan);
  EXPECT_TRUE(std::includes(numbers.begin(), numbers.end(), kFirstFour.begin(), kFirstFour.end()));
}

TEST_F(RunTest, AnOpenLoopWithOneRequestInFlightSendsTheRestLate) {
  AddSender();
  RunPlan plan = Open(1e6, 500);  // far more than one exchange can take
  plan.max_in_flight = 1;
  const RunResult result = RunPlanned(plan);
  EXPECT_EQ(result.total.requests, 500);
  EXPECT_EQ(result.arrived.answers, 500);
  EXPECT_GT(result.total.send_lag_ns.max(), 0);
}

TEST_F(RunTest, WhatIsNotAnsweredIsCancelledAndCountedAsAnError) {
  AddSender().hold = true;
  RunPlan plan = Closed(3, 3);
  plan.drain_ns = 1;
  RunPlan one_more = plan;
  one_more.requests = 2;  // the third caller finds that the measurement is over
  const RunResult result = RunPlanned(one_more);
  EXPECT_EQ(result.total.requests, 2);
  EXPECT_EQ(result.total.errors.at("CANCELLED").count, 2);
  EXPECT_EQ(result.arrived.answers, 0);
  EXPECT_EQ(result.error_share(), 1.0);
}

TEST_F(RunTest, AnOpenLoopThatIsHeldUpCountsWhatItNeverSent) {
  AddSender().hold = true;
  RunPlan plan = Open(1000.0, 0);
  plan.requests = 0;
  plan.max_in_flight = 2;
  plan.measure_ns = plan.longest_ns = plan.window_ns = 20'000'000;
  plan.drain_ns = 1;
  plan.arrivals = Arrivals::kConstant;
  const RunResult result = RunPlanned(plan);
  EXPECT_EQ(result.total.errors.at("CANCELLED").count, 2);
  EXPECT_GT(result.total.errors.at("UNSENT").count, 0);
  EXPECT_EQ(result.total.failures(), result.total.requests);
}

TEST_F(RunTest, ErrorsAreCountedByCodeAndTheLoopGoesOn) {
  FakeSender& sender = AddSender();
  int number = 0;
  sender.answer = [&](Exchange& exchange) {
    if (++number % 10 == 0) exchange.answer.code = "RESOURCE_EXHAUSTED";
  };
  const RunResult result = RunPlanned(Closed(2, 100));
  EXPECT_EQ(result.total.requests, 100);
  EXPECT_EQ(result.total.errors.at("RESOURCE_EXHAUSTED").count, 10);
  EXPECT_EQ(result.arrived.answers, 90);
  EXPECT_DOUBLE_EQ(result.error_share(), 0.1);
}

TEST_F(RunTest, ChecksTheShareOfAnswersThatIsAskedFor) {
  AddSender();
  std::atomic<int> compared{0};
  actions_.compare = [&](const Draw& draw, const std::string&) {
    EXPECT_TRUE(draw.check);
    return ++compared % 4 == 0 ? std::string("wrong") : std::string();
  };
  RunPlan plan = Closed(1, 1000);
  plan.check_share = 1.0;
  RunResult result = RunPlanned(plan);
  EXPECT_EQ(result.total.checked, 1000);
  EXPECT_EQ(result.total.mismatches, 250);
  EXPECT_EQ(result.total.first_mismatch, "wrong");
  EXPECT_DOUBLE_EQ(result.error_share(), 0.25);
  plan.check_share = 0.3;
  result = RunPlanned(plan);
  EXPECT_NEAR(static_cast<double>(result.total.checked), 300.0, 60.0);
}

TEST_F(RunTest, AMalformedReplyIsAMismatchWithoutBeingAskedFor) {
  AddSender().answer = [](Exchange& exchange) { exchange.answer.fault = "y: too short"; };
  const RunResult result = RunPlanned(Closed(1, 10));
  EXPECT_EQ(result.total.mismatches, 10);
  EXPECT_EQ(result.total.checked, 0);
}

TEST_F(RunTest, TheSameSeedAsksTheSame) {
  FakeSender& sender = AddSender();
  std::vector<int64_t> rows;
  sender.answer = [&](Exchange& exchange) { rows.push_back(exchange.draw.rows); };
  RunPlan plan = Closed(1, 50);
  RunPlanned(plan);
  const std::vector<int64_t> first = rows;
  rows.clear();
  RunPlanned(plan);
  EXPECT_EQ(rows, first);
  rows.clear();
  plan.seed = 2;
  RunPlanned(plan);
  EXPECT_NE(rows, first);
}

TEST_F(RunTest, ATimedRunHasWindowsAndTellsOfEach) {
  AddSender();
  RunPlan plan;
  plan.concurrency = 2;
  plan.warmup_ns = 1'000'000;
  plan.window_ns = 2'000'000;
  plan.measure_ns = plan.longest_ns = 10'000'000;
  plan.stability_percent = 1e9;  // any two rates are that close
  int64_t told = 0;
  actions_.on_window = [&](const Window& window, const Tally&) {
    ++told;
    EXPECT_GE(window.seconds, 0.002);
  };
  const RunResult result = RunPlanned(plan);
  EXPECT_GE(result.seconds, 0.010);
  EXPECT_GE(result.windows.size(), 1u);
  EXPECT_EQ(static_cast<size_t>(told), result.windows.size());
  int64_t in_windows = 0;
  for (const Window& window : result.windows) in_windows += window.answers;
  EXPECT_EQ(in_windows, result.arrived.answers);
}

TEST_F(RunTest, AnOpenLoopGivesUpWhenItIsHopelesslyLate) {
  FakeSender& sender = AddSender();
  sender.hold = true;
  RunPlan plan = Open(1e6, 0);
  plan.max_in_flight = 1;
  plan.measure_ns = plan.longest_ns = 10'000'000;
  plan.window_ns = 1'000'000;
  plan.drain_ns = 1;
  plan.give_up_lag_ns = 1;
  plan.requests = 0;
  // Nothing is answered until the load is over; the next request is then later than it may be, or
  // it was never sent. Either way the run says that it failed.
  const RunResult result = RunPlanned(plan);
  EXPECT_TRUE(result.given_up || result.total.errors.contains("UNSENT"));
  EXPECT_EQ(result.error_share(), 1.0);
}

}  // namespace
}  // namespace nibble::load
