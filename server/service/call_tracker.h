// Counts the calls that are being served, so that a drain can wait for them.
#ifndef NIBBLE_SERVER_SERVICE_CALL_TRACKER_H_
#define NIBBLE_SERVER_SERVICE_CALL_TRACKER_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace nibble::server {

class CallTracker {
 public:
  // A call, from its arrival until its status has been written. The tracker outlives it.
  class Live {
   public:
    explicit Live(CallTracker& tracker) : tracker_(tracker), counted_(tracker.Begin()) {}
    ~Live() {
      if (counted_) tracker_.End();
    }
    Live(const Live&) = delete;
    Live& operator=(const Live&) = delete;

   private:
    CallTracker& tracker_;
    const bool counted_;
  };

  // For a drain, once new calls are refused: blocks until no call that came before is live, or
  // until `deadline`; false in the second case. Then gives the callers that were not yet told to go
  // elsewhere the time to be refused: until none has come for `quiet`, but not longer than
  // kMostQuiets times that, since some come back at once.
  bool WaitQuiet(std::chrono::steady_clock::duration quiet,
                 std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    draining_ = true;
    if (!changed_.wait_until(lock, deadline, [this] { return live_ == 0; })) return false;
    const auto last = std::chrono::steady_clock::now() + kMostQuiets * quiet;
    while (true) {
      const uint64_t arrived = arrived_;
      const auto until = std::min(last, std::chrono::steady_clock::now() + quiet);
      if (!changed_.wait_until(lock, until, [&] { return arrived_ != arrived; })) return true;
      if (std::chrono::steady_clock::now() >= last) return true;
    }
  }

 private:
  static constexpr int kMostQuiets = 5;

  // Whether the call is counted as live: not one that comes while draining.
  bool Begin() {
    std::lock_guard lock(mutex_);
    ++arrived_;
    if (draining_) {
      changed_.notify_all();
      return false;
    }
    ++live_;
    return true;
  }
  void End() {
    std::lock_guard lock(mutex_);
    if (--live_ == 0) changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool draining_ = false;
  int64_t live_ = 0;
  uint64_t arrived_ = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_CALL_TRACKER_H_
