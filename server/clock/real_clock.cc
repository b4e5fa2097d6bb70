#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "server/clock/clock.h"

namespace nibble::server {
namespace {

class RealClock final : public Clock {
 public:
  RealClock() : thread_([this] { Loop(); }) {}

  ~RealClock() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
    // What a dropped callback owns may call Cancel as it goes: it must find whole maps.
    const auto dropped = std::exchange(timers_, {});
    when_.clear();
  }

  TimePoint Now() const override { return std::chrono::steady_clock::now(); }

  TimerId RunAt(TimePoint when, std::function<void()> fn) override {
    std::unique_lock lock(mutex_);
    const TimerId id = next_id_++;
    const auto added = timers_.emplace(Key{when, id}, std::move(fn)).first;
    when_.emplace(id, when);
    const bool first = added == timers_.begin();
    lock.unlock();
    if (first) wake_.notify_one();
    return id;
  }

  bool Cancel(TimerId id) override {
    // The callback may own what its destructor must not free under the lock.
    std::function<void()> dropped;
    std::lock_guard lock(mutex_);
    const auto known = when_.find(id);
    if (known == when_.end()) return false;
    const auto timer = timers_.find(Key{known->second, id});
    dropped = std::move(timer->second);
    timers_.erase(timer);
    when_.erase(known);
    return true;
  }

 private:
  // Equal times run in the order in which they were set.
  using Key = std::pair<TimePoint, TimerId>;

  // A bound far from TimePoint::max(), whose conversions in a standard library could overflow.
  static constexpr Duration kLongestWait = std::chrono::hours(24);

  void Loop() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (timers_.empty()) {
        wake_.wait(lock);
        continue;
      }
      const auto first = timers_.begin();
      const TimePoint now = Now();
      if (first->first.first > now) {
        const TimePoint until = std::min(first->first.first, now + kLongestWait);
        wake_.wait_until(lock, until);
        continue;
      }
      std::function<void()> fn = std::move(first->second);
      when_.erase(first->first.second);
      timers_.erase(first);
      lock.unlock();
      fn();
      fn = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Key, std::function<void()>> timers_;
  std::unordered_map<TimerId, TimePoint> when_;
  TimerId next_id_ = 1;
  bool stopping_ = false;
  std::thread thread_;  // last: the loop uses everything above
};

}  // namespace

std::unique_ptr<Clock> CreateRealClock() { return std::make_unique<RealClock>(); }

}  // namespace nibble::server
