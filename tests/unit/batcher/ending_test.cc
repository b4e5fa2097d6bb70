// How requests end: deadlines, cancellation, failures and draining.
#include <algorithm>

#include "gmock/gmock.h"
#include "tests/unit/batcher/batcher_fixture.h"

namespace nibble::server {
namespace {

using std::chrono::microseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(BatcherTest, DeadlineIsAnsweredByATimerWhileTheDeviceIsBusy) {
  Start({});
  Send(1, 1);
  const int b = Send(1, 2, {.deadline = microseconds(50)});
  clock_.Advance(microseconds(49));
  EXPECT_FALSE(Ended(b));
  clock_.Advance(microseconds(1));
  EXPECT_EQ(Code(b), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(sent_[b].outcome.queue_us, 50);
  EXPECT_EQ(sent_[b].outcome.batches, 0);
  EXPECT_EQ(sent_[b].outcome.kernel, "");
  EXPECT_EQ(batcher_->queued_rows(), 0);
  EXPECT_THAT(observer_.rejected, ElementsAre(RejectReason::kExpired));
  EXPECT_EQ(executor_.held(), 1u);
  executor_.Release();
  EXPECT_EQ(executor_.held(), 0u) << "expired rows never reach the device";
}

TEST_F(BatcherTest, OneTimerServesAllDeadlines) {
  Start({});
  Send(1, 1);
  std::vector<int> ids;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(Send(i % 3, 1, {.deadline = microseconds(1000 - 7 * i)}));
    EXPECT_LE(clock_.pending_timers(), 1u);
  }
  clock_.Advance(microseconds(1000 - 7 * 99 - 1));
  EXPECT_THAT(order_, IsEmpty());
  clock_.Advance(microseconds(7 * 99 + 1));
  std::reverse(ids.begin(), ids.end());
  EXPECT_EQ(order_, ids) << "each at its own time";
  for (const int id : ids) {
    EXPECT_EQ(sent_[id].outcome.queue_us, 1000 - 7 * (id - 1));
  }
  executor_.Release();
}

TEST_F(BatcherTest, ExpiryIsSeenWhenABatchIsFormedBeforeTheTimerRuns) {
  Start({});
  const int a = Send(1, 1);
  // Set before the batcher's own timer for the same instant, so that it runs first.
  clock_.RunAt(clock_.Now() + microseconds(10), [&] { executor_.Release(); });
  const int b = Send(1, 1, {.deadline = microseconds(10)});
  const int c = Send(1, 1);
  clock_.Advance(microseconds(10));
  EXPECT_EQ(Code(a), absl::StatusCode::kOk);
  EXPECT_EQ(Code(b), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(HeldPieces(), "2[0,1)");
  executor_.Release();
  EXPECT_EQ(Code(c), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, RefusesAnExpiredRequest) {
  Start({});
  EXPECT_EQ(TrySend(1, 1, {.deadline = microseconds(0)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(TrySend(1, 1, {.deadline = microseconds(-5)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(executor_.runs(), 0u);
  EXPECT_THAT(observer_.rejected, ElementsAre(RejectReason::kExpired, RejectReason::kExpired));
}

TEST_F(BatcherTest, ADeadlineThatPassesInFlightDoesNotMatter) {
  Start({});
  const int a = Send(1, 1, {.deadline = microseconds(10)});
  clock_.Advance(microseconds(100));
  EXPECT_FALSE(Ended(a));
  executor_.Release();
  EXPECT_EQ(Code(a), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, DeadlineDropsTheRestOfASplitRequestAndWaitsForWhatIsInFlight) {
  Start({.max_batch_rows = 4});
  const int big = Send(1, 10, {.deadline = microseconds(10)});
  const int next = Send(1, 1);
  clock_.Advance(microseconds(10));
  EXPECT_FALSE(Ended(big)) << "a piece is still in flight";
  EXPECT_EQ(batcher_->queued_rows(), 1);
  executor_.Release();
  EXPECT_EQ(Code(big), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(sent_[big].outcome.batches, 1);
  EXPECT_EQ(HeldPieces(), "1[0,1)");
  executor_.Release();
  EXPECT_EQ(Code(next), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, ALateDeadlineOfASplitRequestWhoseRowsAllRanIsOk) {
  Start({.max_batch_rows = 4});
  const int big = Send(1, 8, {.deadline = microseconds(10)});
  executor_.Release();
  clock_.Advance(microseconds(20));
  executor_.Release();
  EXPECT_EQ(Code(big), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, HeldRequestExpiresAtItsDeadline) {
  Start({.max_queue_delay = microseconds(100)});
  const int a = Send(1, 1, {.deadline = microseconds(40)});
  const int b = Send(1, 1);
  clock_.Advance(microseconds(40));
  EXPECT_EQ(Code(a), absl::StatusCode::kDeadlineExceeded);
  clock_.Advance(microseconds(60));
  EXPECT_EQ(HeldPieces(), "1[0,1)");
  executor_.Release();
  EXPECT_EQ(Code(b), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, CancelOfAQueuedRequestIsImmediate) {
  Start({});
  Send(1, 1);
  const int b = Send(1, 2);
  const int c = Send(1, 3);
  const int d = Send(1, 4);
  Cancel(c);  // the middle of the queue
  EXPECT_EQ(Code(c), absl::StatusCode::kCancelled);
  EXPECT_EQ(batcher_->queued_rows(), 6);
  Cancel(b);  // its head
  Cancel(d);  // its last
  EXPECT_EQ(Code(b), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(d), absl::StatusCode::kCancelled);
  EXPECT_EQ(batcher_->queued_rows(), 0);
  executor_.Release();
  EXPECT_EQ(executor_.held(), 0u);
  EXPECT_EQ(executor_.runs(), 1u);
  EXPECT_EQ(observer_.rejected, std::vector(3, RejectReason::kCancelled));
}

TEST_F(BatcherTest, CancelOfTheOldestHeadLetsTheNextKeyGoFirst) {
  Start({});
  Send(1, 1);
  const int b = Send(2, 1);
  Send(3, 1);
  Send(2, 1);
  Cancel(b);
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "2[0,1)");
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "3[0,1)");
  executor_.Release();
}

TEST_F(BatcherTest, CancelInFlightWaitsForTheDevice) {
  Start({});
  const int a = Send(1, 1);
  Cancel(a);
  EXPECT_FALSE(Ended(a));
  EXPECT_EQ(batcher_->pending(), 1);
  executor_.Release();
  EXPECT_EQ(Code(a), absl::StatusCode::kCancelled);
  EXPECT_THAT(observer_.rejected, IsEmpty()) << "its rows did run";
}

TEST_F(BatcherTest, CancelOfASplitRequestDropsTheRest) {
  Start({.max_batch_rows = 4, .batches_in_flight = 2});
  const int big = Send(1, 20);
  Cancel(big);
  EXPECT_EQ(batcher_->queued_rows(), 0);
  executor_.Release(1);
  EXPECT_FALSE(Ended(big));
  executor_.Release(0);
  EXPECT_EQ(Code(big), absl::StatusCode::kCancelled);
  EXPECT_EQ(executor_.runs(), 2u);
}

TEST_F(BatcherTest, CancelAfterTheEndOrTwiceOrOfNothingDoesNothing) {
  Start({});
  const int a = Send(1, 1);
  const int b = Send(1, 1);
  Cancel(b);
  Cancel(b);
  executor_.Release();
  Cancel(a);
  batcher_->Cancel(0);
  batcher_->Cancel(~Batcher::Ticket{0});
  EXPECT_EQ(Code(a), absl::StatusCode::kOk);
  EXPECT_EQ(Code(b), absl::StatusCode::kCancelled);
}

TEST_F(BatcherTest, AFailedBatchFailsEveryRequestInIt) {
  Start({});
  Send(1, 1);
  const int b = Send(1, 1);
  const int c = Send(1, 1);
  const int d = Send(2, 1);
  executor_.Release();
  executor_.Release(0, {absl::InternalError("kernel fault"), "", 3});
  for (const int id : {b, c}) {
    EXPECT_EQ(Code(id), absl::StatusCode::kInternal);
    EXPECT_EQ(std::string(sent_[id].outcome.status.message()), "kernel fault");
  }
  executor_.Release();
  EXPECT_EQ(Code(0), absl::StatusCode::kOk);
  EXPECT_EQ(Code(d), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, AFailedPieceDropsTheRestOfItsRequest) {
  Start({.max_batch_rows = 4, .batches_in_flight = 2});
  const int big = Send(1, 20);
  const int after = Send(1, 2);
  executor_.Release(0, {absl::UnavailableError("device lost"), "", 0});
  EXPECT_FALSE(Ended(big)) << "its second piece is in flight";
  ASSERT_EQ(executor_.held(), 2u);
  EXPECT_EQ(HeldPieces(1), "1[0,2)");
  executor_.Release(0);
  EXPECT_EQ(Code(big), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Ended(after));
  executor_.Release();
  EXPECT_EQ(Code(after), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, TheFirstErrorIsTheAnswer) {
  Start({.max_batch_rows = 4, .batches_in_flight = 2});
  const int a = Send(1, 8);
  executor_.Release(0, {absl::InternalError("first"), "", 0});
  Cancel(a);
  executor_.Release(0, {absl::UnavailableError("third"), "", 0});
  EXPECT_EQ(Code(a), absl::StatusCode::kInternal);

  const int b = Send(1, 1);
  Cancel(b);
  executor_.Release(0, {absl::InternalError("late"), "", 0});
  EXPECT_EQ(Code(b), absl::StatusCode::kCancelled);
}

TEST_F(BatcherTest, StopAcceptingRefusesTheNewAndFinishesTheOld) {
  Start({});
  const int a = Send(1, 1);
  const int b = Send(1, 1);
  batcher_->StopAccepting();
  EXPECT_EQ(TrySend(1, 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(observer_.rejected, ElementsAre(RejectReason::kDraining));
  executor_.Release();
  executor_.Release();
  EXPECT_EQ(Code(a), absl::StatusCode::kOk);
  EXPECT_EQ(Code(b), absl::StatusCode::kOk);
  EXPECT_EQ(batcher_->pending(), 0);
}

TEST_F(BatcherTest, StopAcceptingEndsTheHold) {
  Start({.max_queue_delay = microseconds(100)});
  const int a = Send(1, 1);
  EXPECT_FALSE(Ended(a));
  batcher_->StopAccepting();
  executor_.Release();
  EXPECT_EQ(Code(a), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, FailQueuedEndsWhatIsQueuedAndNotWhatIsInFlight) {
  Start({.max_batch_rows = 4});
  const int big = Send(1, 6);
  const int b = Send(1, 1);
  const int c = Send(2, 1);
  batcher_->FailQueued(absl::UnavailableError("drain timeout"));
  EXPECT_EQ(Code(b), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(c), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Ended(big));
  EXPECT_EQ(batcher_->queued_rows(), 0);
  executor_.Release();
  EXPECT_EQ(Code(big), absl::StatusCode::kUnavailable) << "half of it never ran";
  EXPECT_EQ(observer_.rejected, std::vector(3, RejectReason::kDraining));

  const int d = Send(1, 4);
  batcher_->FailQueued(absl::UnavailableError("drain timeout"));
  executor_.Release();
  EXPECT_EQ(Code(d), absl::StatusCode::kOk) << "all of it was in flight";
}

TEST_F(BatcherTest, FailQueuedNeverAnswersOk) {
  Start({});
  Send(1, 1);
  const int b = Send(1, 1);
  batcher_->FailQueued(absl::OkStatus());
  EXPECT_EQ(Code(b), absl::StatusCode::kUnavailable);
  executor_.Release();
}

}  // namespace
}  // namespace nibble::server
