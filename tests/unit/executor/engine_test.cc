#include "server/executor/engine.h"

#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "tests/unit/executor/fixture.h"

namespace nibble::server {
namespace {

using ::nibble::testing::SumRequest;
using ::nibble::testing::TestDevice;
using ::nibble::testing::WeightedSum;

class EngineTest : public ::testing::Test {
 protected:
  EngineTest()
      : clock_(CreateRealClock()),
        metrics_(Metrics::Create("test", "cpu")),
        first_(false),
        second_(false, "cpu:1") {}

  void Start(const Batcher::Options& batching) {
    EngineOptions options;
    options.batcher = batching;
    options.on_device_lost = [this](const absl::Status&) { ++lost_; };
    engine_ = Engine::Create(options, {&first_, &second_}, *clock_, *metrics_).value();
  }

  Work WorkFor(const SumRequest& request, std::function<void(const Outcome&)> done) {
    Work work;
    work.rows = static_cast<int64_t>(request.a.size());
    work.bytes = 12 * request.a.size();
    work.op = static_cast<int>(Op::kSiluMulQuant);
    work.payload = request.job;
    work.done = std::move(done);
    return work;
  }
  Outcome Run(size_t device, const SumRequest& request) {
    std::promise<Outcome> ended;
    const auto ticket = engine_->batcher(device).Submit(
        WorkFor(request, [&](const Outcome& outcome) { ended.set_value(outcome); }));
    if (!ticket.ok()) return Outcome{.status = ticket.status()};
    return ended.get_future().get();
  }

  std::unique_ptr<Clock> clock_;
  std::unique_ptr<Metrics> metrics_;
  TestDevice first_;
  TestDevice second_;
  std::atomic<int> lost_{0};
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, RunsOnTheDeviceThatIsAskedAndCounts) {
  Start({});
  SumRequest request(std::make_shared<WeightedSum>(), {1, 2}, {3});
  for (size_t device : {0, 1}) {
    request.out = {0, 0};
    const Outcome outcome = Run(device, request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.batch_rows, 2);
    EXPECT_EQ(outcome.batches, 1);
    EXPECT_EQ(request.out[1], 203);
  }
  EXPECT_THAT(metrics_->Text(),
              ::testing::HasSubstr("nibble_batch_rows_count{op=\"silu_mul_quant\"} 2"));
}

TEST_F(EngineTest, ManyCallersGetTheirOwnRows) {
  Start({.max_batch_rows = 16});
  auto sum = std::make_shared<WeightedSum>();
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&, caller] {
      for (int call = 0; call < 50; ++call) {
        const auto rows = static_cast<size_t>(1 + (caller * 7 + call) % 40);
        SumRequest request(sum, std::vector<int32_t>(rows, caller), {call});
        const Outcome outcome = Run(static_cast<size_t>(call % 2), request);
        const std::vector<int32_t> expected(rows, caller * 100 + call);
        if (!outcome.status.ok() || request.out != expected) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(EngineTest, ALostDeviceFailsItsQueueAndIsReported) {
  Start({});
  first_.Lose(absl::UnavailableError("gone"));
  SumRequest request(std::make_shared<WeightedSum>(), {1}, {1});
  EXPECT_EQ(Run(0, request).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Run(1, request).status.ok());
  engine_.reset();
  EXPECT_EQ(lost_, 1);
}

TEST_F(EngineTest, StopAcceptingRefusesOnEveryDevice) {
  Start({});
  engine_->StopAccepting();
  SumRequest request(std::make_shared<WeightedSum>(), {1}, {1});
  for (size_t device : {0, 1}) {
    EXPECT_EQ(Run(device, request).status.code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(EngineTest, TheLeastLoadedDeviceHasTheFewestQueuedRows) {
  Start({.max_queue_delay = std::chrono::seconds(60)});
  EXPECT_EQ(engine_->LeastLoadedDevice(), 0u);
  SumRequest request(std::make_shared<WeightedSum>(), {1}, {1});
  std::promise<void> ended;
  ASSERT_TRUE(engine_->batcher(0)
                  .Submit(WorkFor(request, [&](const Outcome&) { ended.set_value(); }))
                  .ok());
  EXPECT_EQ(engine_->LeastLoadedDevice(), 1u);
  engine_->FailQueued(absl::UnavailableError("enough"));
  ended.get_future().get();
  EXPECT_EQ(engine_->LeastLoadedDevice(), 0u);
}

}  // namespace
}  // namespace nibble::server
