// Callbacks: what they may rely on, and calls from within them.
#include <functional>
#include <memory>

#include "tests/unit/batcher/batcher_fixture.h"

namespace nibble::server {
namespace {

using std::chrono::microseconds;

TEST_F(BatcherTest, ThePayloadIsReleasedWhenTheRequestEnds) {
  Start({});
  Send(1, 1);
  auto payload = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = payload;
  Work work;
  work.key = Key(1);
  work.rows = 1;
  work.payload = std::move(payload);
  bool alive_in_done = false;
  work.done = [&](const Outcome&) { alive_in_done = !watched.expired(); };
  ASSERT_TRUE(batcher_->Submit(std::move(work)).ok());
  executor_.Release();
  executor_.Release();
  EXPECT_TRUE(alive_in_done);
  EXPECT_TRUE(watched.expired());
}

TEST_F(BatcherTest, DoneMaySubmitAgain) {
  Start({});
  int again = -1;
  Send(1, 1, {.on_done = [&] {
         again = Send(2, 1);
         EXPECT_EQ(executor_.held(), 1u) << "an idle device takes it at once";
       }});
  executor_.Release();
  EXPECT_FALSE(Ended(again));
  executor_.Release();
  EXPECT_EQ(Code(again), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, DoneMayCancelOthersAndFailTheQueue) {
  Start({});
  int b = -1;
  Send(1, 1, {.on_done = [&] { Cancel(b); }});
  b = Send(2, 1, {.on_done = [&] { batcher_->FailQueued(absl::UnavailableError("gone")); }});
  Send(3, 1);
  const int d = Send(4, 1);
  executor_.Release();  // forms the batch of b before a's done cancels it
  EXPECT_FALSE(Ended(b));
  executor_.Release();
  EXPECT_EQ(Code(b), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(d), absl::StatusCode::kUnavailable);
  executor_.Release();
  EXPECT_EQ(Code(2), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, RunMayCompleteSynchronously) {
  Start({});
  executor_.CompleteInRun({absl::OkStatus(), "gemv", 1});
  const int a = Send(1, 1);
  EXPECT_EQ(Code(a), absl::StatusCode::kOk) << "before Submit returned";
  EXPECT_EQ(batcher_->pending(), 0);
}

TEST_F(BatcherTest, ManySynchronousBatchesDoNotDeepenTheStack) {
  Start({.max_batch_rows = 1, .max_queue_rows = 1 << 20});
  const int first = Send(1, 1);
  const int big = Send(1, 200000);
  executor_.CompleteInRun();
  executor_.Release();
  EXPECT_EQ(Code(first), absl::StatusCode::kOk);
  EXPECT_EQ(Code(big), absl::StatusCode::kOk);
  EXPECT_EQ(sent_[big].outcome.batches, 200000);
}

TEST_F(BatcherTest, AChainOfSynchronousRequestsDoesNotDeepenTheStack) {
  Start({});
  executor_.CompleteInRun();
  int left = 200000;
  std::function<void()> next = [&] {
    if (left-- == 0) return;
    Work work;
    work.rows = 1;
    work.done = [&](const Outcome&) { next(); };
    ASSERT_TRUE(batcher_->Submit(std::move(work)).ok());
  };
  next();
  EXPECT_EQ(left, -1);
  EXPECT_EQ(executor_.runs(), 200000u);
}

TEST_F(BatcherTest, TwoBatchersMayFeedEachOther) {
  Start({});
  testing::PuppetExecutor other_executor;
  Batcher other({}, clock_, other_executor, nullptr);
  executor_.CompleteInRun();
  other_executor.CompleteInRun();
  int left = 100000;
  std::function<void()> next = [&] {
    if (left-- == 0) return;
    Work work;
    work.rows = 1;
    work.done = [&](const Outcome&) { next(); };
    ASSERT_TRUE((left % 2 == 0 ? *batcher_ : other).Submit(std::move(work)).ok());
  };
  next();
  EXPECT_EQ(left, -1);
  EXPECT_EQ(other.pending(), 0);
}

TEST_F(BatcherTest, AnObserverMayCallBack) {
  struct Caller final : BatcherObserver {
    void OnQueueRows(int64_t) override { seen = batcher->queued_rows(); }
    void OnBatchFormed(int, int64_t) override { batcher->Cancel(1); }
    void OnQueued(int, double) override {}
    void OnRejected(RejectReason) override { batcher->StopAccepting(); }
    Batcher* batcher = nullptr;
    int64_t seen = -1;
  } observer;
  batcher_ = std::make_unique<Batcher>(Batcher::Options{}, clock_, executor_, &observer);
  observer.batcher = batcher_.get();
  const int a = Send(1, 1);
  const int b = Send(1, 2);
  EXPECT_EQ(observer.seen, 2);
  Cancel(b);
  EXPECT_EQ(TrySend(1, 1).status().code(), absl::StatusCode::kUnavailable);
  executor_.Release();
  EXPECT_EQ(Code(a), absl::StatusCode::kCancelled);
}

TEST_F(BatcherTest, ATimerLeftBehindDoesNotTouchADestroyedBatcher) {
  Start({});
  Send(1, 1, {.deadline = microseconds(10)});
  Send(1, 1, {.deadline = microseconds(20)});
  executor_.Release();
  executor_.Release();
  batcher_.reset();
  EXPECT_EQ(clock_.pending_timers(), 0u);
  clock_.Advance(microseconds(100));
}

}  // namespace
}  // namespace nibble::server
