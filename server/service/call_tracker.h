// Counts the calls that are being served, so that a drain can wait for them.
#ifndef NIBBLE_SERVER_SERVICE_CALL_TRACKER_H_
#define NIBBLE_SERVER_SERVICE_CALL_TRACKER_H_

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
    explicit Live(CallTracker& tracker) : tracker_(tracker), counted_(tracker.Arrive()) {}
    ~Live() {
      if (counted_) tracker_.Leave();
    }
    Live(const Live&) = delete;
    Live& operator=(const Live&) = delete;

   private:
    CallTracker& tracker_;
    const bool counted_;
  };

  // Calls that arrive from now on are refused: they are not waited for, and callers that keep
  // trying do not hold up the drain.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

  // After Close. Blocks until the calls that arrived before it are done; false when `deadline`
  // comes first. Then waits for `quiet` without a new call, but not longer than kMostQuiets of
  // them: calls that were under way when their callers had not yet been told to go elsewhere get an
  // answer.
  bool WaitQuiet(std::chrono::steady_clock::duration quiet,
                 std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [this] { return live_ == 0; })) return false;
    for (int i = 0; i < kMostQuiets; ++i) {
      const uint64_t arrived = arrived_;
      changed_.wait_for(lock, quiet, [] { return false; });
      if (arrived_ == arrived) break;
    }
    return true;
  }

 private:
  static constexpr int kMostQuiets = 5;

  bool Arrive() {
    std::lock_guard lock(mutex_);
    ++arrived_;
    if (closed_) return false;
    ++live_;
    return true;
  }
  void Leave() {
    {
      std::lock_guard lock(mutex_);
      if (--live_ != 0) return;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int64_t live_ = 0;  // arrived before Close
  uint64_t arrived_ = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_CALL_TRACKER_H_
