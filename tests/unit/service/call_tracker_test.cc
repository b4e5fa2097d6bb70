#include "server/service/call_tracker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

namespace nibble::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(CallTracker, IsQuietWithoutCalls) {
  CallTracker calls;
  EXPECT_TRUE(calls.WaitQuiet(milliseconds(1), steady_clock::now() + hours(1)));
}

TEST(CallTracker, ACallThatLivesOnPassesTheDeadline) {
  CallTracker calls;
  const CallTracker::Live live(calls);
  EXPECT_FALSE(calls.WaitQuiet(milliseconds(1), steady_clock::now()));
}

TEST(CallTracker, WaitsForTheCallsBeforeIt) {
  CallTracker calls;
  std::optional<CallTracker::Live> live(std::in_place, calls);
  std::thread ending([&] { live.reset(); });
  EXPECT_TRUE(calls.WaitQuiet(milliseconds(1), steady_clock::now() + hours(1)));
  ending.join();
}

TEST(CallTracker, CallersThatComeBackAtOnceAreNotWaitedFor) {
  CallTracker calls;
  std::atomic<bool> stop{false};
  std::atomic<int> started{0};
  // A new call all the time.
  const auto call_again = [&] {
    ++started;
    while (!stop) {
      const CallTracker::Live first(calls);
      const CallTracker::Live second(calls);
    }
  };
  std::thread a(call_again);
  std::thread b(call_again);
  while (started < 2) std::this_thread::yield();
  EXPECT_TRUE(calls.WaitQuiet(milliseconds(20), steady_clock::now() + hours(1)));
  stop = true;
  a.join();
  b.join();
}

}  // namespace
}  // namespace nibble::server
