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
    explicit Live(CallTracker& tracker) : tracker_(tracker) { tracker_.Add(1); }
    ~Live() { tracker_.Add(-1); }
    Live(const Live&) = delete;
    Live& operator=(const Live&) = delete;

   private:
    CallTracker& tracker_;
  };

  // Blocks until no call has been live for `quiet`, or until `deadline`; false in the second case.
  // The quiet time is for calls that callers had under way when they were not yet told to go
  // elsewhere.
  bool WaitQuiet(std::chrono::steady_clock::duration quiet,
                 std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    while (true) {
      if (!changed_.wait_until(lock, deadline, [this] { return live_ == 0; })) return false;
      const uint64_t arrived = arrived_;
      if (!changed_.wait_for(lock, quiet, [&] { return arrived_ != arrived; })) return true;
    }
  }

 private:
  void Add(int delta) {
    {
      std::lock_guard lock(mutex_);
      live_ += delta;
      if (delta > 0) ++arrived_;
      if (live_ != 0 && delta < 0) return;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t live_ = 0;
  uint64_t arrived_ = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_CALL_TRACKER_H_
