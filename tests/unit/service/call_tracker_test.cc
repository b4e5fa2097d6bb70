#include "server/service/call_tracker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

namespace nibble::server {
namespace {

using std::chrono::steady_clock;
constexpr std::chrono::milliseconds kQuiet{1};

steady_clock::time_point FarAway() { return steady_clock::now() + std::chrono::hours(1); }

TEST(CallTrackerTest, AcceptedCallsAreWaitedFor) {
  CallTracker tracker;
  std::optional<CallTracker::Live> first(tracker);
  std::optional<CallTracker::Live> second(tracker);
  tracker.Close();
  EXPECT_FALSE(tracker.WaitQuiet(kQuiet, steady_clock::now()));
  first.reset();
  EXPECT_FALSE(tracker.WaitQuiet(kQuiet, steady_clock::now()));
  std::thread ends([&] { second.reset(); });
  EXPECT_TRUE(tracker.WaitQuiet(kQuiet, FarAway()));
  ends.join();
}

TEST(CallTrackerTest, RefusedCallsAreNotWaitedFor) {
  CallTracker tracker;
  tracker.Close();
  const CallTracker::Live refused(tracker);
  EXPECT_TRUE(tracker.WaitQuiet(kQuiet, steady_clock::now()));
}

TEST(CallTrackerTest, CallersThatKeepTryingDoNotHoldItUp) {
  CallTracker tracker;
  tracker.Close();
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) CallTracker::Live refused(tracker);
  });
  EXPECT_TRUE(tracker.WaitQuiet(kQuiet, FarAway()));
  stop = true;
  caller.join();
}

}  // namespace
}  // namespace nibble::server
