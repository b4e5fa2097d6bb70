#include "server/clock/clock.h"

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace nibble::server {
namespace {

using ::nibble::testing::FakeClock;
using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::ElementsAre;

// Holds the thread of a real clock until Release, so that what is set meanwhile is set before any
// of it runs.
class HeldClock {
 public:
  HeldClock() : clock_(CreateRealClock()) {
    std::promise<void> held;
    clock_->RunAt(Clock::TimePoint(), [this, &held] {
      held.set_value();
      release_.get_future().wait();
    });
    held.get_future().wait();
  }
  ~HeldClock() {
    if (!released_) Release();
  }
  void Release() {
    released_ = true;
    release_.set_value();
  }
  // Waits until everything that is due has run.
  void Drain() {
    std::promise<void> done;
    clock_->RunAt(clock_->Now(), [&done] { done.set_value(); });
    done.get_future().wait();
  }
  Clock* operator->() { return clock_.get(); }

 private:
  std::promise<void> release_;
  bool released_ = false;
  std::unique_ptr<Clock> clock_;
};

// A callback's capture that tells when it is destroyed.
struct Tracked {
  explicit Tracked(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
  ~Tracked() { at_end_(); }
  std::function<void()> at_end_;
};

TEST(RealClockTest, NowNeverGoesBack) {
  const auto clock = CreateRealClock();
  Clock::TimePoint last = clock->Now();
  for (int i = 0; i < 1000; ++i) {
    const Clock::TimePoint now = clock->Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(RealClockTest, RunsOnItsOwnThreadAndNotEarly) {
  const auto clock = CreateRealClock();
  const Clock::TimePoint due = clock->Now() + milliseconds(2);
  std::promise<std::pair<std::thread::id, Clock::TimePoint>> ran;
  EXPECT_NE(clock->RunAt(due,
                         [&] {
                           ran.set_value({std::this_thread::get_id(), clock->Now()});
                         }),
            0u);
  const auto [thread, when] = ran.get_future().get();
  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_GE(when, due);
}

TEST(RealClockTest, RunsByTimeThenInTheOrderSet) {
  HeldClock clock;
  std::vector<int> order;
  const Clock::TimePoint base = clock->Now() - hours(1);
  clock->RunAt(base + microseconds(2), [&] { order.push_back(3); });
  clock->RunAt(base + microseconds(1), [&] { order.push_back(1); });
  clock->RunAt(base + microseconds(1), [&] { order.push_back(2); });
  clock.Release();
  clock.Drain();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(RealClockTest, AnEarlierTimerOvertakesTheOneWaitedFor) {
  const auto clock = CreateRealClock();
  std::promise<void> ran;
  clock->RunAt(Clock::TimePoint::max(), [] { ADD_FAILURE() << "ran at the end of time"; });
  clock->RunAt(clock->Now() + hours(1), [] { ADD_FAILURE() << "ran an hour early"; });
  clock->RunAt(clock->Now() + milliseconds(1), [&ran] { ran.set_value(); });
  ran.get_future().get();
}

TEST(RealClockTest, CancelBeforeTheStartStopsItAndFreesTheCallback) {
  HeldClock clock;
  bool freed = false;
  auto tracked = std::make_shared<Tracked>([&freed] { freed = true; });
  const Clock::TimerId id =
      clock->RunAt(clock->Now(), [tracked] { ADD_FAILURE() << "was cancelled"; });
  tracked.reset();
  EXPECT_FALSE(freed);
  EXPECT_TRUE(clock->Cancel(id));
  EXPECT_TRUE(freed);
  EXPECT_FALSE(clock->Cancel(id));
  clock.Release();
  clock.Drain();
}

TEST(RealClockTest, CancelAfterTheStartAnswersFalse) {
  const auto clock = CreateRealClock();
  std::promise<Clock::TimerId> id;
  std::promise<bool> cancelled;
  id.set_value(clock->RunAt(clock->Now(), [&, own = id.get_future().share()] {
    cancelled.set_value(clock->Cancel(own.get()));
  }));
  EXPECT_FALSE(cancelled.get_future().get());
  EXPECT_FALSE(clock->Cancel(0));
  EXPECT_FALSE(clock->Cancel(12345));
}

TEST(RealClockTest, CallbacksMayUseTheClock) {
  HeldClock clock;
  bool other_cancelled = false;
  std::promise<void> chained;
  Clock::TimerId other = 0;
  const Clock::TimePoint now = clock->Now();
  clock->RunAt(now, [&] {
    other_cancelled = clock->Cancel(other);
    clock->RunAt(clock->Now(), [&chained] { chained.set_value(); });
  });
  other = clock->RunAt(now, [] { ADD_FAILURE() << "was cancelled"; });
  clock.Release();
  chained.get_future().get();
  EXPECT_TRUE(other_cancelled);
}

TEST(RealClockTest, CallbacksAreFreedWithoutTheLock) {
  HeldClock clock;
  auto tracked = std::make_shared<Tracked>([&clock] { clock->Cancel(1); });
  const auto cancelled = clock->RunAt(clock->Now() + hours(1), [tracked] {});
  clock->RunAt(clock->Now(),
               [tracked = std::make_shared<Tracked>([&clock] { clock->Cancel(1); })] {});
  tracked.reset();
  EXPECT_TRUE(clock->Cancel(cancelled));
  clock.Release();
  clock.Drain();
}

TEST(RealClockTest, DestroyingDropsTheTimersThatAreLeft) {
  auto clock = CreateRealClock();
  int freed = 0;
  Clock* const raw = clock.get();
  std::vector<bool> cancelled;
  for (int i = 0; i < 3; ++i) {
    const auto other = clock->RunAt(clock->Now() + hours(2), [] {});
    clock->RunAt(clock->Now() + hours(1),
                 [tracked = std::make_shared<Tracked>([&freed, &cancelled, raw, other] {
                    ++freed;
                    cancelled.push_back(raw->Cancel(other));
                  })] { ADD_FAILURE() << "ran an hour early"; });
  }
  clock.reset();
  EXPECT_EQ(freed, 3);
  EXPECT_THAT(cancelled, ElementsAre(false, false, false));
}

// Every timer is either cancelled or run, never both and never neither.
TEST(RealClockTest, ManyThreadsSetAndCancel) {
  constexpr int kThreads = 4;
  constexpr int kTimers = 500;
  const auto clock = CreateRealClock();
  std::atomic<int> cancelled{0};
  std::mutex mutex;
  std::condition_variable changed;
  int ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTimers; ++i) {
        const auto id = clock->RunAt(clock->Now() + microseconds(i % 3 * 50), [&] {
          std::lock_guard lock(mutex);
          ++ran;
          changed.notify_all();
        });
        if (i % 2 == 0 && clock->Cancel(id)) ++cancelled;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ran + cancelled == kThreads * kTimers; });
  EXPECT_GE(ran, kThreads * kTimers / 2);
}

TEST(FakeClockTest, StandsStillUntilAdvanced) {
  FakeClock clock;
  const Clock::TimePoint start = clock.Now();
  bool ran = false;
  clock.RunAt(start, [&ran] { ran = true; });
  EXPECT_EQ(clock.Now(), start);
  EXPECT_FALSE(ran);
  clock.Advance(Clock::Duration(0));
  EXPECT_TRUE(ran);
  clock.Advance(milliseconds(3));
  EXPECT_EQ(clock.Now(), start + milliseconds(3));
  clock.AdvanceTo(start);
  EXPECT_EQ(clock.Now(), start + milliseconds(3));
}

TEST(FakeClockTest, RunsDueTimersInOrderAtTheirOwnTime) {
  FakeClock clock;
  const Clock::TimePoint start = clock.Now();
  std::vector<std::pair<int, Clock::Duration>> ran;
  const auto note = [&](int name) {
    return [&, name] { ran.emplace_back(name, clock.Now() - start); };
  };
  clock.RunAt(start + milliseconds(5), note(2));
  clock.RunAt(start + milliseconds(1), [&] {
    note(1)();
    clock.RunAt(start + milliseconds(6), note(4));
    clock.RunAt(start + milliseconds(11), note(5));
  });
  clock.RunAt(start + milliseconds(5), note(3));
  EXPECT_EQ(clock.next_timer(), start + milliseconds(1));
  clock.Advance(milliseconds(10));
  EXPECT_THAT(ran, ElementsAre(std::pair(1, milliseconds(1)), std::pair(2, milliseconds(5)),
                               std::pair(3, milliseconds(5)), std::pair(4, milliseconds(6))));
  EXPECT_EQ(clock.pending_timers(), 1u);
  EXPECT_EQ(clock.Now(), start + milliseconds(10));
}

TEST(FakeClockTest, CancelledTimersDoNotRun) {
  FakeClock clock;
  const auto id = clock.RunAt(clock.Now(), [] { ADD_FAILURE() << "was cancelled"; });
  EXPECT_TRUE(clock.Cancel(id));
  EXPECT_FALSE(clock.Cancel(id));
  Clock::TimerId own = 0;
  bool own_cancelled = true;
  own = clock.RunAt(clock.Now(), [&] { own_cancelled = clock.Cancel(own); });
  clock.Advance(hours(1));
  EXPECT_FALSE(own_cancelled);
  EXPECT_EQ(clock.pending_timers(), 0u);
  EXPECT_EQ(clock.next_timer(), Clock::TimePoint::max());
}

TEST(FakeClockTest, ManyThreadsSetCancelAndAdvance) {
  constexpr int kThreads = 4;
  constexpr int kTimers = 500;
  FakeClock clock;
  std::atomic<int> ran{0};
  std::atomic<int> cancelled{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTimers; ++i) {
        const auto id = clock.RunAt(clock.Now() + microseconds(i % 3), [&ran] { ++ran; });
        if (i % 2 == 0 && clock.Cancel(id)) ++cancelled;
        clock.Advance(microseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  clock.Advance(milliseconds(1));
  EXPECT_EQ(ran + cancelled, kThreads * kTimers);
}

TEST(ClockTest, MicrosecondsBetweenIsSigned) {
  const Clock::TimePoint begin(milliseconds(5));
  EXPECT_DOUBLE_EQ(MicrosecondsBetween(begin, begin + std::chrono::nanoseconds(1500)), 1.5);
  EXPECT_DOUBLE_EQ(MicrosecondsBetween(begin, begin - milliseconds(1)), -1000);
}

}  // namespace
}  // namespace nibble::server
