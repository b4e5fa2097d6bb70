// Batches kept short while one caller asks for much more than another: when that is, what a batch's
// time is known of, and what both make of the batches.
#include "server/batcher/contention.h"

#include "server/batcher/batch_times.h"
#include "tests/unit/batcher/batcher_fixture.h"

namespace nibble::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kFlood = 1;
constexpr uint64_t kLight = 2;

TEST(ContentionTest, OneCallerAloneContendsWithNobody) {
  Contention contention;
  Clock::TimePoint now{};
  for (int i = 1; i < 100; ++i, now += milliseconds(100)) contention.Note(kFlood, 1, now);
  EXPECT_EQ(contention.LightRequestRows(now), 0);
}

TEST(ContentionTest, SeesALightCallerAtOnceAndForgetsItLater) {
  Contention contention;
  Clock::TimePoint now{};
  for (int i = 0; i < 10; ++i) contention.Note(kFlood, 8, now);
  EXPECT_EQ(contention.LightRequestRows(now), 0);
  contention.Note(kLight, 2, now);
  EXPECT_EQ(contention.LightRequestRows(now), 2);
  contention.Note(kLight, 3, now);
  now += seconds(1);
  EXPECT_EQ(contention.LightRequestRows(now), 3) << "its largest request";
  for (int i = 0; i < 9; ++i, now += seconds(1)) {
    contention.Note(kFlood, 80, now);
    EXPECT_EQ(contention.LightRequestRows(now), 3);
  }
  now += seconds(2);
  EXPECT_EQ(contention.LightRequestRows(now), 0);
}

TEST(ContentionTest, CallersAlikeDoNotContend) {
  Contention contention;
  Clock::TimePoint now{};
  for (int i = 0; i < 40; ++i, now += milliseconds(130)) {
    contention.Note(kFlood, 1, now);
    contention.Note(kLight, i % 2 == 0 ? 2 : 1, now);
    EXPECT_EQ(contention.LightRequestRows(now), 0);
  }
}

// Callers who each send a row every 10 ms; those in `come_and_go` under another name after 2.5 s.
// The share of time in which they contend.
double ContendedShare(int callers, int come_and_go) {
  Contention contention;
  Clock::TimePoint now{};
  int contended = 0;
  constexpr int kSteps = 3000;
  for (int step = 0; step < kSteps; ++step, now += milliseconds(10)) {
    for (int i = 0; i < callers; ++i) {
      const int name = i < come_and_go ? (step + 40 * i) / 250 : 0;
      contention.Note(static_cast<uint64_t>(1000 * i + name), 1, now);
    }
    contended += contention.LightRequestRows(now) > 0 ? 1 : 0;
  }
  return static_cast<double>(contended) / kSteps;
}

TEST(ContentionTest, CallersAlikeWhoComeAndGoHardlyContend) {
  EXPECT_EQ(ContendedShare(4, 0), 0);
  EXPECT_LE(ContendedShare(2, 1), 0.05) << "a tenth of a second each";
  EXPECT_LE(ContendedShare(8, 4), 0.2);
}

TEST(ContentionTest, OneOfTwoAlikeWhoLeavesLeavesNoContention) {
  Contention contention;
  Clock::TimePoint now{};
  for (int step = 0; step < 1000; ++step, now += milliseconds(10)) {
    contention.Note(kFlood, 1, now);
    if (step < 350) contention.Note(kLight, 1, now);
    EXPECT_EQ(contention.LightRequestRows(now), 0) << step;
  }
}

TEST(ContentionTest, ALightCallerIsSeenForAsLongAsItCalls) {
  Contention contention;
  Clock::TimePoint now{};
  for (int step = 0; step < 1000; ++step, now += milliseconds(10)) {
    for (int i = 0; i < 10; ++i) contention.Note(kFlood, 1, now);
    if (step >= 120 && step % 7 == 0) contention.Note(kLight, 1, now);
    if (step < 126) continue;
    EXPECT_EQ(contention.LightRequestRows(now), 1) << step;
  }
}

TEST(ContentionTest, ThoseWhoCameBeforeALongPauseDoNotCountWithThoseAfter) {
  Contention contention;
  Clock::TimePoint now{};
  contention.Note(kLight, 1, now);
  now += seconds(60);
  contention.Note(kFlood, 100, now);
  now += seconds(1);
  EXPECT_EQ(contention.LightRequestRows(now), 0);
}

class BatchTimesTest : public ::testing::Test {
 protected:
  void Ran(int64_t rows, microseconds time) {
    times_.Record(Key(1), rows, now_, now_ + time);
    now_ += time;
  }
  int64_t Rows(int64_t base, microseconds least = microseconds(0)) const {
    return times_.RowsWithin(Key(1), base, least, now_);
  }
  Clock::Duration Expected(int64_t rows, Clock::Duration most) const {
    return times_.Expected(Key(1), rows, most, now_);
  }

  BatchTimes times_;
  Clock::TimePoint now_{};
};

TEST_F(BatchTimesTest, WhatHasNotRunIsTriedBaseFirstAndThenSizeBySize) {
  EXPECT_EQ(Rows(3), 3);
  Ran(3, microseconds(100));
  EXPECT_EQ(Rows(3), 8);
  Ran(8, microseconds(120));
  EXPECT_EQ(Rows(3), 16);
  EXPECT_EQ(times_.RowsWithin(Key(2), 3, microseconds(0), now_), 3) << "another key";
}

TEST_F(BatchTimesTest, KeepsToHalfAsLongAgainAsTheBase) {
  Ran(1, microseconds(100));
  Ran(2, microseconds(120));
  Ran(4, microseconds(160));
  Ran(8, microseconds(240));
  EXPECT_EQ(Rows(1), 3) << "between 2 and 4 rows lie 150 us";
  EXPECT_EQ(Rows(2), 5) << "between 4 and 8 rows lie 180 us";
  EXPECT_EQ(Rows(1, microseconds(240)), 16) << "8 are within 240 us, 16 have not run";
  EXPECT_EQ(Rows(8), 16);
}

TEST_F(BatchTimesTest, OldTimesAreMeasuredAgain) {
  Ran(1, microseconds(100));
  Ran(2, microseconds(900));
  EXPECT_EQ(Rows(1), 1);
  now_ += seconds(10);
  EXPECT_EQ(Rows(1), 1);
  Ran(1, microseconds(100));
  EXPECT_EQ(Rows(1), 2) << "it may be faster by now";
  Ran(2, microseconds(100));
  EXPECT_EQ(Rows(1), 1) << "one fast run does not outweigh a slow one";
  for (int i = 0; i < 7; ++i) Ran(2, microseconds(100));
  EXPECT_EQ(Rows(1), 4);
  Ran(2, microseconds(900));
  EXPECT_EQ(Rows(1), 4) << "a slow run was disturbed";
}

TEST_F(BatchTimesTest, ADisturbedBaseTakesNoLongerThanALargerSize) {
  Ran(1, microseconds(900));
  Ran(2, microseconds(100));
  Ran(4, microseconds(200));
  EXPECT_EQ(Rows(1), 3) << "1.5 times 100 us";
}

TEST_F(BatchTimesTest, AnySizeIsSafe) {
  const int64_t huge = int64_t{1} << 40;
  Ran(huge, microseconds(1));
  EXPECT_EQ(Rows(huge), huge);
  Ran(1, microseconds(0));
  EXPECT_EQ(Rows(1), 2);
}

TEST_F(BatchTimesTest, WhatABatchShouldTake) {
  EXPECT_EQ(Expected(3, milliseconds(1)), milliseconds(1)) << "not known";
  Ran(4, microseconds(300));
  EXPECT_EQ(Expected(3, milliseconds(1)), microseconds(300));
  EXPECT_EQ(Expected(3, microseconds(200)), microseconds(200));
  EXPECT_EQ(Expected(2, milliseconds(1)), milliseconds(1));
  EXPECT_EQ(Expected(int64_t{1} << 40, milliseconds(1)), milliseconds(1));
  now_ += seconds(60);
  EXPECT_EQ(Expected(3, milliseconds(1)), milliseconds(1)) << "forgotten";
}

class ContendedBatchTest : public BatcherTest {
 protected:
  // The flood's backlog, and a request of the light caller for each window.
  void Flood(int requests, int64_t rows = 1) {
    for (int i = 0; i < requests; ++i) Send(1, rows, {.caller = kFlood});
  }
  // The batch that runs takes so long; the rows of the next one.
  int64_t NextAfter(microseconds time) {
    clock_.Advance(time);
    executor_.Release();
    return executor_.held() == 0 ? 0 : executor_.batch().rows;
  }
};

// A batch takes 100 us and 100 us a row.
constexpr microseconds TimeOf(int64_t rows) { return microseconds(100 * (1 + rows)); }

TEST_F(ContendedBatchTest, ABacklogFillsShortBatchesOnlyWhileALightCallerIsThere) {
  Start({.max_batch_rows = 64, .contended_batch = microseconds(1)});
  Flood(400);
  EXPECT_EQ(NextAfter(TimeOf(1)), 64) << "alone";
  Send(1, 1, {.caller = kLight});
  clock_.Advance(seconds(1));
  int64_t rows = NextAfter(TimeOf(64));
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(rows, 3) << "at most 1.5 times the time of a row of each: 450 us";
    Send(1, 1, {.caller = kLight});
    const int light = static_cast<int>(sent_.size()) - 1;
    rows = NextAfter(TimeOf(rows));
    EXPECT_FALSE(Ended(light));
    rows = NextAfter(TimeOf(rows));
    EXPECT_TRUE(Ended(light)) << "in the very next batch";
  }
  EXPECT_GE(rows, 2);
  clock_.Advance(seconds(20));
  Flood(1);
  EXPECT_EQ(NextAfter(TimeOf(rows)), 64) << "alone again";
  ReleaseAll();
}

TEST_F(ContendedBatchTest, SlowBatchesRunOneAtATimeForALightCaller) {
  Start({.max_batch_rows = 1, .contended_batch = microseconds(400), .batches_in_flight = 3});
  Flood(400);
  EXPECT_EQ(executor_.held(), 3u) << "alone";
  Send(1, 1, {.caller = kLight});
  clock_.Advance(seconds(1));
  NextAfter(TimeOf(1));
  EXPECT_EQ(executor_.held(), 2u) << "those in flight take too long";
  NextAfter(TimeOf(1));
  for (int i = 0; i < 10; ++i) {
    NextAfter(microseconds(400));
    EXPECT_EQ(executor_.held(), 1u);
  }
  for (int i = 0; i < 20; ++i) NextAfter(microseconds(50));
  EXPECT_EQ(executor_.held(), 3u) << "of short ones";
  ReleaseAll();
}

TEST_F(ContendedBatchTest, LargeRequestsAreSplitForALightCaller) {
  Start({.max_batch_rows = 64, .contended_batch = microseconds(400)});
  Send(3, 1, {.caller = kFlood});
  Send(1, 60, {.caller = kFlood});
  const int large = static_cast<int>(sent_.size()) - 1;
  Send(2, 1, {.caller = kLight});
  clock_.Advance(seconds(1));
  EXPECT_EQ(NextAfter(TimeOf(1)), 1);
  EXPECT_EQ(NextAfter(TimeOf(1)), 1);
  EXPECT_EQ(executor_.batch().key, Key(2));
  for (int64_t rows = NextAfter(TimeOf(1)); rows > 0; rows = NextAfter(TimeOf(rows))) {
    EXPECT_LE(rows, 4);
  }
  EXPECT_EQ(Code(large), absl::StatusCode::kOk);
  EXPECT_GE(sent_[large].outcome.batches, 15);
}

TEST_F(ContendedBatchTest, CallersWhoComeOneAfterTheOtherDoNotContend) {
  Start({.max_batch_rows = 64, .contended_batch = microseconds(400)});
  for (const int caller : {kLight, kFlood, kLight, kFlood}) {
    const int64_t rows = caller == kFlood ? 60 : 1;
    Send(1, rows, {.caller = static_cast<uint64_t>(caller)});
    EXPECT_EQ(executor_.batch().rows, rows) << "whole";
    EXPECT_EQ(NextAfter(TimeOf(rows)), 0);
  }
}

TEST_F(ContendedBatchTest, AFullBatchThatIsNotHeldIsTakenWhole) {
  Start(
      {.max_batch_rows = 8, .max_queue_delay = seconds(60), .contended_batch = microseconds(400)});
  Send(2, 1, {.caller = kLight});
  Flood(7);
  EXPECT_EQ(executor_.held(), 0u);
  Flood(1);
  EXPECT_EQ(executor_.batch().rows, 8);
  clock_.Advance(seconds(60));
  ReleaseAll();
}

TEST_F(ContendedBatchTest, ZeroTurnsItOff) {
  Start({.max_batch_rows = 64, .contended_batch = microseconds(0)});
  Flood(200);
  Send(1, 1, {.caller = kLight});
  clock_.Advance(seconds(1));
  EXPECT_EQ(NextAfter(TimeOf(1)), 64);
  EXPECT_EQ(NextAfter(TimeOf(64)), 64);
  ReleaseAll();
}

TEST_F(ContendedBatchTest, CallersTakeTurnsOverKeys) {
  Start({.max_batch_rows = 4, .contended_batch = microseconds(0)});
  for (int i = 0; i < 4; ++i) {
    Send(1, 4, {.caller = kFlood});
    Send(2, 4, {.caller = kFlood});
  }
  Send(3, 1, {.caller = kLight});
  EXPECT_EQ(executor_.Release().key, Key(1));
  // Both have nothing yet but what runs; the flood's requests are older, the light caller's turn
  // comes after one of them.
  EXPECT_EQ(executor_.Release().key, Key(2));
  EXPECT_EQ(executor_.Release().key, Key(3));
  ReleaseAll();
}

}  // namespace
}  // namespace nibble::server
