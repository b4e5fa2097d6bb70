// Bounds the bytes that calls hold: a call's tensors stay in memory until its caller has taken the
// reply, long after they have left the queue.
#ifndef NIBBLE_SERVER_SERVICE_BYTE_BUDGET_H_
#define NIBBLE_SERVER_SERVICE_BYTE_BUDGET_H_

#include <cstdint>
#include <mutex>

namespace nibble::server {

class ByteBudget {
 public:
  // Not explicit: a context of aggregates is initialized with the number.
  ByteBudget(uint64_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // False, and nothing is taken, where the limit would be passed.
  [[nodiscard]] bool Take(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > limit_ - taken_) return false;
    taken_ += bytes;
    return true;
  }
  void Give(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    taken_ -= bytes;
  }
  uint64_t limit() const { return limit_; }

 private:
  const uint64_t limit_;
  std::mutex mutex_;
  uint64_t taken_ = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_BYTE_BUDGET_H_
