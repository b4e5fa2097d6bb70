#include "server/executor/executor.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "tests/unit/executor/fixture.h"

namespace nibble::server {
namespace {

using ::nibble::testing::SumRequest;
using ::nibble::testing::TestDevice;
using ::nibble::testing::WeightedSum;
using ::testing::ElementsAre;

class ExecutorTest : public ::testing::TestWithParam<bool> {
 protected:
  ExecutorTest() : device_(GetParam()) {
    executor_ =
        Executor::Create(device_, {.lanes = 2}, nullptr, [this](const absl::Status& status) {
          lost_.push_back(status);
        }).value();
  }

  BatchResult Run(Batch batch) {
    for (const Piece& piece : batch.pieces) batch.rows += piece.rows;
    std::promise<BatchResult> done;
    executor_->Run(std::move(batch), [&](const BatchResult& result) { done.set_value(result); });
    return done.get_future().get();
  }

  std::vector<absl::Status> lost_;
  TestDevice device_;
  std::unique_ptr<Executor> executor_;
};

TEST_P(ExecutorTest, GathersThePiecesAndScattersTheirResults) {
  auto sum = std::make_shared<WeightedSum>(7);
  SumRequest first(sum, {1, 2, 3}, {10, 20, 30});
  SumRequest second(sum, {4, 5}, {40, 50});
  const BatchResult result = Run({.pieces = {{first.job, 0, 3}, {second.job, 0, 2}}});
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_THAT(first.out, ElementsAre(117, 227, 337));
  EXPECT_THAT(second.out, ElementsAre(447, 557));
  EXPECT_EQ(sum->rows_counted, 5);
  EXPECT_FALSE(result.kernel.empty());
  // The workspace, and with memory of its own the rows in and out.
  EXPECT_EQ(device_.device_allocations, GetParam() ? 3 : 1);
}

TEST_P(ExecutorTest, APieceTouchesItsOwnRowsAlone) {
  auto sum = std::make_shared<WeightedSum>();
  SumRequest request(sum, {1, 2, 3, 4}, {0, 0, 5, 0});
  ASSERT_TRUE(Run({.pieces = {{request.job, 1, 2}}}).status.ok());
  EXPECT_THAT(request.out, ElementsAre(-1, 200, 305, -1));
}

TEST_P(ExecutorTest, AStrideOfZeroRepeatsTheRow) {
  auto sum = std::make_shared<WeightedSum>();
  SumRequest request(sum, {1, 2, 3}, {9});
  ASSERT_TRUE(Run({.pieces = {{request.job, 0, 3}}}).status.ok());
  EXPECT_THAT(request.out, ElementsAre(109, 209, 309));
}

TEST_P(ExecutorTest, BatchesOfGrowingSizeReuseAndGrowTheMemory) {
  auto sum = std::make_shared<WeightedSum>();
  for (size_t rows : {1, 3, 1000, 10, 100000}) {
    std::vector<int32_t> a(rows);
    for (size_t i = 0; i < rows; ++i) a[i] = static_cast<int32_t>(i);
    SumRequest request(sum, a, {1});
    ASSERT_TRUE(Run({.pieces = {{request.job, 0, static_cast<int64_t>(rows)}}}).status.ok());
    EXPECT_EQ(request.out.front(), 1);
    EXPECT_EQ(request.out.back(), static_cast<int32_t>(rows - 1) * 100 + 1);
  }
}

// Several parts on their way to the device one after another, each copied by several threads.
TEST_P(ExecutorTest, LargeBatchesAreCopiedInParts) {
  constexpr int32_t kRows = 700'001;
  executor_ = Executor::Create(device_, {.copy_helpers = 3}, nullptr, {}).value();
  auto sum = std::make_shared<WeightedSum>();
  std::vector<int32_t> a(kRows);
  std::vector<int32_t> b(kRows);
  for (int32_t i = 0; i < kRows; ++i) {
    a[static_cast<size_t>(i)] = i % 1000;
    b[static_cast<size_t>(i)] = i;
  }
  SumRequest first(sum, a, b);
  SumRequest second(sum, b, a);
  ASSERT_TRUE(Run({.pieces = {{first.job, 0, kRows}, {second.job, 0, kRows}}}).status.ok());
  for (int32_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(first.out[static_cast<size_t>(i)], i % 1000 * 100 + i);
    ASSERT_EQ(second.out[static_cast<size_t>(i)], i * 100 + i % 1000);
  }
}

TEST_P(ExecutorTest, AFailedLaunchIsReportedAndTheNextBatchRuns) {
  auto failing = std::make_shared<WeightedSum>();
  failing->failure = absl::InternalError("no such kernel");
  SumRequest failed(failing, {1}, {1});
  const BatchResult result = Run({.pieces = {{failed.job, 0, 1}}});
  EXPECT_EQ(result.status.message(), "no such kernel");
  EXPECT_THAT(failed.out, ElementsAre(-1));
  EXPECT_EQ(failing->rows_counted, 0);
  SumRequest good(std::make_shared<WeightedSum>(), {1}, {1});
  EXPECT_TRUE(Run({.pieces = {{good.job, 0, 1}}}).status.ok());
  EXPECT_TRUE(lost_.empty());
}

TEST_P(ExecutorTest, ALostDeviceIsReportedOnce) {
  device_.Lose(absl::UnavailableError("the device fell off the bus"));
  auto sum = std::make_shared<WeightedSum>();
  for (int i = 0; i < 3; ++i) {
    SumRequest request(sum, {1}, {1});
    const BatchResult result = Run({.pieces = {{request.job, 0, 1}}});
    EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(request.out, ElementsAre(-1));
  }
  executor_.reset();
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].message(), "the device fell off the bus");
}

TEST_P(ExecutorTest, DestructionFinishesWhatWasAccepted) {
  auto sum = std::make_shared<WeightedSum>();
  std::vector<std::unique_ptr<SumRequest>> requests;
  std::atomic<int> done{0};
  for (int i = 0; i < 50; ++i) {
    requests.push_back(
        std::make_unique<SumRequest>(sum, std::vector<int32_t>{i}, std::vector<int32_t>{1}));
    executor_->Run({.pieces = {{requests.back()->job, 0, 1}}, .rows = 1},
                   [&done](const BatchResult&) { ++done; });
  }
  executor_.reset();
  EXPECT_EQ(done, 50);
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(requests[static_cast<size_t>(i)]->out, ElementsAre(i * 100 + 1));
  }
}

// Batches that come again are replayed from the eighth on, each with rows of its own. One lane, as
// each has graphs of its own.
class ReplayTest : public ExecutorTest {
 protected:
  ReplayTest() { executor_ = Executor::Create(device_, {.lanes = 1}, nullptr, {}).value(); }

  // One request of `rows` rows under the key `key`; its results are checked.
  void RunRows(uint64_t key, int64_t rows, int32_t seed) {
    std::vector<int32_t> a, b, expected;
    for (int32_t row = 0; row < rows; ++row) {
      a.push_back(seed + row);
      b.push_back(seed * 7 - row);
      expected.push_back(a.back() * 100 + b.back());
    }
    SumRequest request(sum_, a, b);
    const BatchResult result = Run({.key = {{key}}, .pieces = {{request.job, 0, rows}}});
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(request.out, expected);
  }

  static constexpr int32_t kUses = 8;  // the use at which a batch is recorded
  const std::shared_ptr<WeightedSum> sum_ = std::make_shared<WeightedSum>();
};

TEST_P(ReplayTest, FromTheEighthUseOn) {
  for (int32_t use = 1; use <= 10; ++use) {
    RunRows(1, 3, use);
    EXPECT_EQ(device_.graphs.recorded, use < kUses ? 0 : 1);
    EXPECT_EQ(device_.graphs.replayed, std::max(0, use - kUses + 1));
  }
  EXPECT_EQ(sum_->rows_counted, 30);
}

TEST_P(ReplayTest, EachKeyAndRowCountOnItsOwn) {
  for (int32_t use = 1; use <= kUses + 1; ++use) {
    for (const uint64_t key : {1, 2}) {
      for (const int64_t rows : {1, 2}) RunRows(key, rows, use);
    }
  }
  EXPECT_EQ(device_.graphs.recorded, 4);
  EXPECT_EQ(device_.graphs.alive, 4);
}

TEST_P(ReplayTest, NeverIntoABufferThatHasMoved) {
  for (int32_t use = 1; use <= kUses; ++use) RunRows(1, 3, use);
  EXPECT_EQ(device_.graphs.alive, 1);
  RunRows(2, 1000, 1);  // outgrows the staging memory
  EXPECT_EQ(device_.graphs.alive, 0);
  for (int32_t use = 1; use <= kUses; ++use) RunRows(1, 3, use);
  EXPECT_EQ(device_.graphs.recorded, 2);
}

TEST_P(ReplayTest, NotAfterAnError) {
  for (int32_t use = 1; use <= kUses; ++use) RunRows(1, 3, use);
  sum_->failure = absl::InternalError("no such kernel");
  SumRequest failed(sum_, {1}, {1});
  EXPECT_FALSE(Run({.key = {{2}}, .pieces = {{failed.job, 0, 1}}}).status.ok());
  EXPECT_EQ(device_.graphs.alive, 0);
  sum_->failure = absl::OkStatus();
  for (int32_t use = 1; use <= kUses; ++use) RunRows(1, 3, use);
  EXPECT_EQ(device_.graphs.recorded, 2);
}

TEST_P(ReplayTest, NotWhatCannotBeRecorded) {
  device_.graphs.fail_recording = true;
  for (int32_t use = 1; use <= kUses + 2; ++use) RunRows(1, 3, use);
  EXPECT_EQ(device_.graphs.replayed, 0);
  device_.graphs.fail_recording = false;
  RunRows(1, 3, 0);
  EXPECT_EQ(device_.graphs.recorded, 0);
}

TEST_P(ReplayTest, NeitherLargeBatchesNorWhatDoesNotRepeat) {
  for (int32_t use = 1; use <= kUses + 1; ++use) RunRows(1, 5000, use);
  sum_->repeating = false;
  for (int32_t use = 1; use <= kUses + 1; ++use) RunRows(2, 3, use);
  EXPECT_EQ(device_.graphs.recorded, 0);
}

TEST_P(ReplayTest, ALostDeviceReplaysNothing) {
  for (int32_t use = 1; use <= kUses; ++use) RunRows(1, 3, use);
  device_.Lose(absl::UnavailableError("gone"));
  SumRequest request(sum_, {1, 2, 3}, {1, 2, 3});
  const BatchResult result = Run({.key = {{1}}, .pieces = {{request.job, 0, 3}}});
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(request.out, ElementsAre(-1, -1, -1));
  EXPECT_EQ(device_.graphs.replayed, 1);
}

TEST_P(ReplayTest, GraphsEndWithTheExecutor) {
  for (int32_t use = 1; use <= kUses; ++use) RunRows(1, 3, use);
  executor_.reset();
  EXPECT_EQ(device_.graphs.alive, 0);
}

INSTANTIATE_TEST_SUITE_P(Memory, ReplayTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "OfItsOwn" : "Shared"; });

// Lanes that wait awake take every batch exactly once, whoever sleeps.
class SpinningTest : public ::testing::TestWithParam<int> {};

TEST_P(SpinningTest, EveryBatchRuns) {
  TestDevice device(true);
  auto executor =
      Executor::Create(device, {.lanes = GetParam(), .spin = std::chrono::microseconds(200)},
                       nullptr, {})
          .value();
  auto sum = std::make_shared<WeightedSum>();
  constexpr int kCallers = 3, kCalls = 200;
  std::atomic<int> right{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int call = 0; call < kCalls; ++call) {
        SumRequest request(sum, {caller}, {call});
        std::promise<void> done;
        executor->Run({.pieces = {{request.job, 0, 1}}, .rows = 1},
                      [&](const BatchResult&) { done.set_value(); });
        done.get_future().wait();
        if (request.out[0] == caller * 100 + call) ++right;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right, kCallers * kCalls);
  executor.reset();
}

INSTANTIATE_TEST_SUITE_P(Lanes, SpinningTest, ::testing::Values(1, 2, 4));

INSTANTIATE_TEST_SUITE_P(Memory, ExecutorTest, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "OfItsOwn" : "Shared"; });

}  // namespace
}  // namespace nibble::server
