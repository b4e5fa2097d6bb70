// How batches are formed: what starts when, which rows share a batch, and the queue's bounds.
#include <limits>

#include "gmock/gmock.h"
#include "tests/unit/batcher/batcher_fixture.h"

namespace nibble::server {
namespace {

using std::chrono::microseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(BatcherTest, LoneRequestStartsAtOnce) {
  Start({});
  const int a = Send(1, 3, {.op = 7});
  ASSERT_EQ(executor_.held(), 1u);
  EXPECT_EQ(HeldPieces(), "0[0,3)");
  EXPECT_EQ(executor_.batch().key, Key(1));
  EXPECT_EQ(executor_.batch().rows, 3);
  EXPECT_EQ(batcher_->queued_rows(), 0);
  EXPECT_EQ(batcher_->pending(), 1);
  EXPECT_EQ(clock_.pending_timers(), 0u);

  executor_.Release(0, {absl::OkStatus(), "gemv", 12.5});
  EXPECT_EQ(Code(a), absl::StatusCode::kOk);
  EXPECT_EQ(sent_[a].outcome.kernel, "gemv");
  EXPECT_EQ(sent_[a].outcome.batch_rows, 3);
  EXPECT_EQ(sent_[a].outcome.batches, 1);
  EXPECT_EQ(sent_[a].outcome.queue_us, 0);
  EXPECT_EQ(sent_[a].outcome.compute_us, 12.5);
  EXPECT_EQ(batcher_->pending(), 0);
  EXPECT_THAT(observer_.batches, ElementsAre(std::pair(7, int64_t{3})));
  EXPECT_THAT(observer_.queued, ElementsAre(std::pair(7, 0.0)));
  EXPECT_THAT(observer_.rejected, IsEmpty());
}

TEST_F(BatcherTest, FillsWhileBusy) {
  Start({});
  Send(1, 1);
  Send(1, 2);
  clock_.Advance(microseconds(30));
  Send(1, 3);
  clock_.Advance(microseconds(10));
  EXPECT_EQ(executor_.held(), 1u);
  EXPECT_EQ(batcher_->queued_rows(), 5);
  executor_.Release();
  ASSERT_EQ(executor_.held(), 1u);
  EXPECT_EQ(HeldPieces(), "1[0,2) 2[0,3)");
  executor_.Release();
  EXPECT_THAT(order_, ElementsAre(0, 1, 2));
  EXPECT_EQ(sent_[1].outcome.queue_us, 40);
  EXPECT_EQ(sent_[2].outcome.queue_us, 10);
  EXPECT_EQ(sent_[2].outcome.batch_rows, 5);
}

TEST_F(BatcherTest, RunsBatchesInFlightAtOnceAndNoMore) {
  Start({.batches_in_flight = 2});
  Send(1, 1);
  Send(1, 1);
  Send(1, 1);
  Send(1, 1);
  ASSERT_EQ(executor_.held(), 2u);
  EXPECT_EQ(HeldPieces(0), "0[0,1)");
  EXPECT_EQ(HeldPieces(1), "1[0,1)");
  executor_.Release(1);
  ASSERT_EQ(executor_.held(), 2u);
  EXPECT_EQ(HeldPieces(1), "2[0,1) 3[0,1)");
  ReleaseAll();
  EXPECT_THAT(order_, ElementsAre(1, 0, 2, 3));
}

TEST_F(BatcherTest, KeysNeverMixAndOldestHeadGoesFirst) {
  Start({});
  Send(1, 1);
  Send(2, 1);
  Send(3, 1);
  Send(2, 1);
  Send(1, 1);
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "1[0,1) 3[0,1)");
  EXPECT_EQ(executor_.batch().key, Key(2));
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "2[0,1)");
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "4[0,1)");
  executor_.Release();
}

TEST_F(BatcherTest, EveryPartOfTheKeyCounts) {
  Start({});
  Send(0, 1);
  std::vector<BatchKey> keys = {{{9, 0, 0, 0}}, {{9, 1, 0, 0}}, {{9, 0, 1, 0}}, {{9, 0, 0, 1}}};
  int done = 0;
  for (const BatchKey& key : keys) {
    Work work;
    work.key = key;
    work.rows = 1;
    work.done = [&done](const Outcome&) { ++done; };
    ASSERT_TRUE(batcher_->Submit(std::move(work)).ok());
  }
  executor_.Release();
  for (const BatchKey& key : keys) {
    EXPECT_EQ(executor_.batch().key, key);
    EXPECT_EQ(executor_.Release().rows, 1);
  }
  EXPECT_EQ(done, 4);
}

TEST_F(BatcherTest, ABusyKeyDoesNotStarveAnother) {
  Start({.max_batch_rows = 4});
  Send(1, 4);
  Send(2, 1);
  for (int i = 0; i < 3; ++i) Send(1, 4);
  EXPECT_EQ(executor_.Release().key, Key(1));
  EXPECT_EQ(executor_.Release().key, Key(2));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(executor_.Release().key, Key(1));
}

TEST_F(BatcherTest, NeverExceedsMaxBatchRowsAndNeverSplitsWhatFits) {
  Start({.max_batch_rows = 8});
  Send(1, 8);
  Send(1, 5);
  Send(1, 4);  // does not fit beside the 5
  Send(1, 3);  // would, but keeps its place
  Send(1, 1);
  Send(1, 1);
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "1[0,5)");
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "2[0,4) 3[0,3) 4[0,1)");
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "5[0,1)");
  executor_.Release();
}

TEST_F(BatcherTest, OversizeRequestIsSplitAndJoined) {
  Start({.max_batch_rows = 8});
  const int big = Send(1, 19);
  EXPECT_EQ(HeldPieces(), "0[0,8)");
  EXPECT_EQ(batcher_->queued_rows(), 11);
  clock_.Advance(microseconds(5));
  Send(1, 4);
  Send(1, 2);
  executor_.Release(0, {absl::OkStatus(), "gemm", 10});
  EXPECT_EQ(HeldPieces(), "0[8,16)");
  executor_.Release(0, {absl::OkStatus(), "gemm", 20});
  EXPECT_FALSE(Ended(big));
  EXPECT_EQ(HeldPieces(), "0[16,19) 1[0,4)") << "the tail shares its batch";
  executor_.Release(0, {absl::OkStatus(), "gemv", 40});
  EXPECT_EQ(Code(big), absl::StatusCode::kOk);
  EXPECT_EQ(sent_[big].outcome.batches, 3);
  EXPECT_EQ(sent_[big].outcome.batch_rows, 8);
  EXPECT_EQ(sent_[big].outcome.kernel, "gemm");
  EXPECT_EQ(sent_[big].outcome.compute_us, 70);
  EXPECT_EQ(sent_[big].outcome.queue_us, 0);
  EXPECT_EQ(sent_[1].outcome.batch_rows, 7);
  EXPECT_THAT(order_, ElementsAre(0, 1));
  ReleaseAll();
  EXPECT_EQ(observer_.queued.size(), 3u) << "once a request, not once a piece";
}

TEST_F(BatcherTest, OversizeRequestFillsTheRoomLeft) {
  Start({.max_batch_rows = 8});
  Send(2, 1);
  Send(1, 3);
  Send(1, 9);
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "1[0,3) 2[0,5)");
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "2[5,9)");
  executor_.Release();
  EXPECT_EQ(Code(2), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, PiecesMayCompleteInAnyOrder) {
  Start({.max_batch_rows = 4, .batches_in_flight = 3});
  const int big = Send(1, 12);
  ASSERT_EQ(executor_.held(), 3u);
  executor_.Release(2);
  executor_.Release(0);
  EXPECT_FALSE(Ended(big));
  executor_.Release(0);
  EXPECT_EQ(Code(big), absl::StatusCode::kOk);
}

TEST_F(BatcherTest, DelayHoldsUntilTheOldestIsThatOldAndNoLonger) {
  Start({.max_batch_rows = 8, .max_queue_delay = microseconds(100)});
  Send(1, 1);
  EXPECT_EQ(executor_.held(), 0u);
  clock_.Advance(microseconds(60));
  Send(1, 2);
  clock_.Advance(microseconds(39));
  EXPECT_EQ(executor_.held(), 0u);
  clock_.Advance(microseconds(1));
  ASSERT_EQ(executor_.held(), 1u);
  EXPECT_EQ(HeldPieces(), "0[0,1) 1[0,2)");
  EXPECT_THAT(observer_.queued, ElementsAre(std::pair(0, 100.0), std::pair(0, 40.0)));
  executor_.Release();
}

TEST_F(BatcherTest, AFullBatchIsNotHeld) {
  Start({.max_batch_rows = 8, .max_queue_delay = microseconds(100)});
  Send(1, 5);
  Send(2, 7);
  Send(2, 1);
  ASSERT_EQ(executor_.held(), 1u) << "exactly full; the older key is still held";
  EXPECT_EQ(HeldPieces(), "1[0,7) 2[0,1)");
  executor_.Release();
  EXPECT_EQ(executor_.held(), 0u);
  Send(1, 4);
  ASSERT_EQ(executor_.held(), 1u) << "5 + 4 cannot share: more waiting would not fill it further";
  EXPECT_EQ(HeldPieces(), "0[0,5)");
  executor_.Release();
  EXPECT_EQ(executor_.held(), 0u) << "the 4 are held until they are 100 us old";
  clock_.Advance(microseconds(100));
  EXPECT_EQ(HeldPieces(), "3[0,4)");
  executor_.Release();
}

TEST_F(BatcherTest, DelayThatPassedWhileBusyIsNotWaitedForAgain) {
  Start({.max_queue_delay = microseconds(100)});
  Send(1, 1);
  clock_.Advance(microseconds(100));
  ASSERT_EQ(executor_.held(), 1u);
  Send(1, 1);
  clock_.Advance(microseconds(150));
  executor_.Release();
  ASSERT_EQ(executor_.held(), 1u);
  Send(1, 1);
  clock_.Advance(microseconds(30));
  executor_.Release();
  EXPECT_EQ(executor_.held(), 0u) << "only 30 us old";
  clock_.Advance(microseconds(70));
  EXPECT_EQ(HeldPieces(), "2[0,1)");
  executor_.Release();
}

TEST_F(BatcherTest, RowBoundIsExact) {
  Start({.max_queue_rows = 10});
  Send(1, 1);
  Send(1, 6);
  Send(2, 4);  // 10 of 10
  const absl::StatusOr<int> refused = TrySend(3, 1);
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("10 of 10 rows"));
  EXPECT_THAT(observer_.rejected, ElementsAre(RejectReason::kQueueFull));
  EXPECT_EQ(batcher_->pending(), 3);
  executor_.Release();
  Send(3, 6);
  EXPECT_EQ(TrySend(3, 1).status().code(), absl::StatusCode::kResourceExhausted);
  ReleaseAll();
  EXPECT_EQ(batcher_->queued_rows(), 0);
}

TEST_F(BatcherTest, ByteBoundIsExact) {
  Start({.max_queue_bytes = 1000});
  Send(1, 1, {.bytes = 1000});
  Send(1, 1, {.bytes = 999});
  EXPECT_EQ(TrySend(1, 1, {.bytes = 2}).status().code(), absl::StatusCode::kResourceExhausted);
  Send(1, 1, {.bytes = 1});
  const absl::StatusOr<int> refused = TrySend(1, 1, {.bytes = 1});
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("1000 of 1000 bytes"));
  Send(1, 1, {.bytes = 0});
  ReleaseAll();
  Send(1, 1, {.bytes = 1000});
  ReleaseAll();
}

TEST_F(BatcherTest, ARequestLargerThanTheQueueIsToldSo) {
  Start({.max_queue_rows = 10, .max_queue_bytes = 1000});
  for (const absl::StatusOr<int>& refused :
       {TrySend(1, 11), TrySend(1, std::numeric_limits<int64_t>::max()),
        TrySend(1, 1, {.bytes = 1001}),
        TrySend(1, 1, {.bytes = std::numeric_limits<uint64_t>::max()})}) {
    ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("larger than the queue"));
  }
  EXPECT_EQ(executor_.runs(), 0u);
  Send(1, 10, {.bytes = 1000});
  ReleaseAll();
}

TEST_F(BatcherTest, BytesOfASplitRequestCountUntilItsLastRowLeaves) {
  Start({.max_batch_rows = 4, .max_queue_bytes = 100});
  Send(1, 8, {.bytes = 100});
  EXPECT_FALSE(TrySend(1, 1, {.bytes = 1}).ok());
  executor_.Release();
  Send(1, 1, {.bytes = 100});
  ReleaseAll();
}

TEST_F(BatcherTest, RefusesRequestsWithoutRows) {
  Start({});
  for (const int64_t rows : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_EQ(TrySend(1, rows).status().code(), absl::StatusCode::kInvalidArgument) << rows;
  }
  EXPECT_EQ(batcher_->pending(), 0);
}

TEST_F(BatcherTest, ReportsQueuedRows) {
  Start({});
  Send(1, 1);
  Send(1, 4);
  Send(1, 2);
  EXPECT_THAT(observer_.queue_rows, ElementsAre(4, 6));
  ReleaseAll();
  EXPECT_THAT(observer_.queue_rows, ElementsAre(4, 6, 0));
}

TEST_F(BatcherTest, WorksWithoutAnObserver) {
  batcher_ = std::make_unique<Batcher>(Batcher::Options{}, clock_, executor_, nullptr);
  const int a = Send(1, 1);
  const int b = Send(1, 1);
  Cancel(b);
  batcher_->StopAccepting();
  EXPECT_FALSE(TrySend(1, 1).ok());
  ReleaseAll();
  EXPECT_EQ(Code(a), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace nibble::server
