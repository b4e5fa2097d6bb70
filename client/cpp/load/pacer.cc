#include "client/cpp/load/pacer.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

namespace nibble::load {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int64_t kLongestSleepNs = 50'000'000;

}  // namespace

int64_t MonotonicClock::NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * kNsPerSecond + now.tv_nsec;
}

void MonotonicClock::SleepUntil(int64_t when_ns) {
  if (when_ns <= NowNs()) return;
  // A thread is otherwise woken up to 50 us late, which would pass for latency.
  thread_local const bool precise = prctl(PR_SET_TIMERSLACK, 1UL) == 0;
  static_cast<void>(precise);
  const timespec when{.tv_sec = when_ns / kNsPerSecond, .tv_nsec = when_ns % kNsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, nullptr) == EINTR) {
  }
}

PaceResult Pace(ArrivalSchedule& schedule, int64_t start_ns, int64_t give_up_lag_ns, Clock& clock,
                const PacerActions& actions) {
  PaceResult result;
  while (true) {
    const int64_t intended_ns = start_ns + schedule.Next();
    for (int64_t now_ns; (now_ns = clock.NowNs()) < intended_ns;) {
      if (actions.over()) return result;
      clock.SleepUntil(std::min(intended_ns, now_ns + kLongestSleepNs));
    }
    if (!actions.wanted(intended_ns)) return result;
    Exchange* const exchange = result.unsent == 0 ? actions.acquire() : nullptr;
    if (exchange == nullptr) {
      ++result.unsent;
      continue;
    }
    exchange->intended_ns = intended_ns;
    exchange->sent_ns = clock.NowNs();
    const int64_t lag_ns = exchange->sent_ns - intended_ns;
    actions.start(*exchange);
    if (give_up_lag_ns > 0 && lag_ns > give_up_lag_ns) {
      result.given_up = true;
      return result;
    }
  }
}

}  // namespace nibble::load
