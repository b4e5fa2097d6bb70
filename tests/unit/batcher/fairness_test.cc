// Callers that share a batcher: turns by rows within a key, and a full queue.
#include <gmock/gmock.h>

#include "tests/unit/batcher/batcher_fixture.h"

namespace nibble::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kFlood = 1;
constexpr uint64_t kOther = 2;
constexpr uint64_t kThird = 3;

class FairnessTest : public BatcherTest {
 protected:
  // What else callers mean to a batch is contention_test.cc's affair.
  void Start(Batcher::Options options) {
    options.contended_batch = std::chrono::microseconds(0);
    BatcherTest::Start(options);
  }
  // Keeps the device busy, so that what follows queues up.
  void Block() {
    Send(99, 1);
    ASSERT_EQ(executor_.held(), 1u);
  }
};

TEST_F(FairnessTest, ALateCallerSharesTheNextBatch) {
  Start({.max_batch_rows = 4});
  Block();
  for (int i = 0; i < 8; ++i) Send(1, 1, {.caller = kFlood});  // 1..8
  Send(1, 1, {.caller = kOther});                              // 9
  Send(1, 1, {.caller = kOther});                              // 10
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "1[0,1) 9[0,1) 2[0,1) 10[0,1)");
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "3[0,1) 4[0,1) 5[0,1) 6[0,1)");
  ReleaseAll();
}

TEST_F(FairnessTest, TurnsAreCountedInRows) {
  Start({.max_batch_rows = 6});
  Block();
  for (int i = 0; i < 3; ++i) Send(1, 3, {.caller = kFlood});  // 1..3
  for (int i = 0; i < 6; ++i) Send(1, 1, {.caller = kOther});  // 4..9
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "1[0,3) 4[0,1) 5[0,1) 6[0,1)");
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "2[0,3) 7[0,1) 8[0,1) 9[0,1)");
  ReleaseAll();
}

TEST_F(FairnessTest, ALargeRequestLeavesRoomForOthersInItsBatches) {
  Start({.max_batch_rows = 8});
  Block();
  Send(1, 24, {.caller = kFlood});  // 1
  Send(1, 2, {.caller = kOther});   // 2
  executor_.Release();
  // Half of the batch, then the other caller, then what is left of the batch.
  EXPECT_EQ(HeldPieces(), "1[0,6) 2[0,2)");
  executor_.Release();
  EXPECT_EQ(HeldPieces(), "1[6,14)");
  ReleaseAll();
  EXPECT_EQ(Code(1), absl::StatusCode::kOk);
  EXPECT_EQ(sent_[1].outcome.batches, 4);
}

TEST_F(FairnessTest, ACallerWhoWasAwayHasNotSavedUpTurns) {
  Start({.max_batch_rows = 4});
  Block();
  for (int i = 0; i < 8; ++i) Send(1, 1, {.caller = kFlood});  // 1..8
  executor_.Release();
  ASSERT_EQ(HeldPieces(), "1[0,1) 2[0,1) 3[0,1) 4[0,1)");
  for (int i = 0; i < 4; ++i) Send(1, 1, {.caller = kOther});  // 9..12
  executor_.Release();
  // One turn each for what the flood was given meanwhile, not four.
  EXPECT_EQ(HeldPieces(), "9[0,1) 5[0,1) 10[0,1) 6[0,1)");
  ReleaseAll();
}

TEST_F(FairnessTest, AFullQueueMakesRoomForACallerWithinItsShare) {
  Start({.max_batch_rows = 4, .max_queue_rows = 8});
  Block();
  for (int i = 0; i < 8; ++i) Send(1, 1, {.caller = kFlood});  // 1..8
  EXPECT_EQ(TrySend(1, 1, {.caller = kFlood}).status().code(),
            absl::StatusCode::kResourceExhausted);  // 9
  Send(2, 2, {.caller = kOther});                   // 10
  // The flood's newest went, and only they.
  EXPECT_THAT(order_, ElementsAre(8, 7));
  EXPECT_EQ(Code(8), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(sent_[8].outcome.status.message()), HasSubstr("one of 2 callers"));
  EXPECT_EQ(batcher_->queued_rows(), 8);
  EXPECT_THAT(observer_.rejected, ElementsAre(RejectReason::kQueueFull, RejectReason::kQueueFull,
                                              RejectReason::kQueueFull));
  ReleaseAll();
  EXPECT_EQ(Code(10), absl::StatusCode::kOk);
}

TEST_F(FairnessTest, NobodyGetsMoreThanItsShareOfAFullQueue) {
  Start({.max_batch_rows = 4, .max_queue_rows = 8});
  Block();
  for (int i = 0; i < 8; ++i) Send(1, 1, {.caller = kFlood});  // 1..8
  for (int i = 0; i < 4; ++i) Send(1, 1, {.caller = kOther});  // 9..12
  EXPECT_EQ(order_.size(), 4u);
  // Both hold four of eight; neither makes room for the other.
  for (const uint64_t caller : {kFlood, kOther}) {
    EXPECT_EQ(TrySend(1, 1, {.caller = caller}).status().code(),
              absl::StatusCode::kResourceExhausted);  // 13, 14
  }
  // A third may hold two.
  Send(1, 2, {.caller = kThird});  // 15
  EXPECT_EQ(TrySend(1, 1, {.caller = kThird}).status().code(),
            absl::StatusCode::kResourceExhausted);  // 16
  EXPECT_EQ(batcher_->queued_rows(), 8);
  ReleaseAll();
}

TEST_F(FairnessTest, BytesCountAsRowsDo) {
  Start({.max_batch_rows = 4, .max_queue_rows = 100, .max_queue_bytes = 1000});
  Block();
  for (int i = 0; i < 10; ++i) Send(1, 1, {.bytes = 100, .caller = kFlood});  // 1..10
  Send(1, 1, {.bytes = 250, .caller = kOther});                               // 11
  EXPECT_THAT(order_, ElementsAre(10, 9, 8));
  ReleaseAll();
}

TEST_F(FairnessTest, RequestsThatHaveBegunAreNotEvicted) {
  Start({.max_batch_rows = 4, .max_queue_rows = 8});
  Block();
  Send(1, 8, {.caller = kFlood});  // 1
  executor_.Release();
  ASSERT_EQ(HeldPieces(), "1[0,4)");
  Send(1, 4, {.caller = kFlood});  // 2
  EXPECT_EQ(TrySend(1, 5, {.caller = kOther}).status().code(),
            absl::StatusCode::kResourceExhausted);  // 3, over its share
  Send(1, 4, {.caller = kOther});                   // 4
  EXPECT_THAT(order_, ElementsAre(0, 2));
  ReleaseAll();
  EXPECT_EQ(Code(1), absl::StatusCode::kOk);
  EXPECT_EQ(Code(4), absl::StatusCode::kOk);
}

TEST_F(FairnessTest, CancelSoonEndsARequestOnTheClocksThread) {
  Start({});
  Block();
  const int id = Send(1, 1);
  batcher_->CancelSoon(sent_.at(id).ticket);
  EXPECT_FALSE(Ended(id));
  clock_.Advance({});
  EXPECT_EQ(Code(id), absl::StatusCode::kCancelled);
  batcher_->CancelSoon(sent_.at(id).ticket);
  clock_.Advance({});
  ReleaseAll();
}

}  // namespace
}  // namespace nibble::server
