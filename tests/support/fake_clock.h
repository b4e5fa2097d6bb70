// A clock that stands still until a test moves it.
#ifndef NIBBLE_TESTS_SUPPORT_FAKE_CLOCK_H_
#define NIBBLE_TESTS_SUPPORT_FAKE_CLOCK_H_

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "server/clock/clock.h"

namespace nibble::testing {

// Timers run on the thread that calls Advance or AdvanceTo, by time and then in the order in which
// they were set, with no lock held; Now() is the timer's own time while it runs. A timer set for
// the present or the past waits for the next call, Advance(0) included. Thread safe.
class FakeClock final : public nibble::server::Clock {
 public:
  ~FakeClock() override {
    // What a dropped callback owns may call Cancel as it goes: it must find whole maps.
    const auto dropped = std::exchange(timers_, {});
    when_.clear();
  }

  TimePoint Now() const override {
    std::lock_guard lock(mutex_);
    return now_;
  }

  TimerId RunAt(TimePoint when, std::function<void()> fn) override {
    std::lock_guard lock(mutex_);
    const TimerId id = next_id_++;
    timers_.emplace(Key{when, id}, std::move(fn));
    when_.emplace(id, when);
    return id;
  }

  bool Cancel(TimerId id) override {
    std::function<void()> dropped;  // destroyed after the lock
    std::lock_guard lock(mutex_);
    const auto known = when_.find(id);
    if (known == when_.end()) return false;
    const auto timer = timers_.find(Key{known->second, id});
    dropped = std::move(timer->second);
    timers_.erase(timer);
    when_.erase(known);
    return true;
  }

  void Advance(Duration duration) { AdvanceTo(Now() + duration); }

  // Runs every timer that is due by `target`, those that timers set on the way included. Time never
  // goes back.
  void AdvanceTo(TimePoint target) {
    std::unique_lock lock(mutex_);
    while (!timers_.empty() && timers_.begin()->first.first <= target) {
      const auto first = timers_.begin();
      now_ = std::max(now_, first->first.first);
      std::function<void()> fn = std::move(first->second);
      when_.erase(first->first.second);
      timers_.erase(first);
      lock.unlock();
      fn();
      fn = nullptr;
      lock.lock();
    }
    now_ = std::max(now_, target);
  }

  // Timers that have not started.
  size_t pending_timers() const {
    std::lock_guard lock(mutex_);
    return timers_.size();
  }

  // When the first timer is due; TimePoint::max() when there is none.
  TimePoint next_timer() const {
    std::lock_guard lock(mutex_);
    return timers_.empty() ? TimePoint::max() : timers_.begin()->first.first;
  }

 private:
  using Key = std::pair<TimePoint, TimerId>;

  mutable std::mutex mutex_;
  // Away from the epoch, so that "an hour ago" is an ordinary time.
  TimePoint now_{std::chrono::hours(1000)};
  std::map<Key, std::function<void()>> timers_;
  std::unordered_map<TimerId, TimePoint> when_;
  TimerId next_id_ = 1;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_SUPPORT_FAKE_CLOCK_H_
