// Bounds the bytes that calls hold: a call's tensors stay in memory until its caller has taken the
// reply, long after they have left the queue.
#ifndef NIBBLE_SERVER_SERVICE_BYTE_BUDGET_H_
#define NIBBLE_SERVER_SERVICE_BYTE_BUDGET_H_

#include <cstdint>
#include <mutex>
#include <unordered_map>

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
  // The same for a caller who may hold no more than half of the limit, so that one alone never
  // holds all. Given back by GiveFrom.
  [[nodiscard]] bool TakeFor(uint64_t caller, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > limit_ - taken_) return false;
    const auto held = held_.try_emplace(caller, 0).first;
    const bool fits = held->second <= limit_ / 2 && bytes <= limit_ / 2 - held->second;
    if (fits) {
      held->second += bytes;
      taken_ += bytes;
    } else if (held->second == 0) {
      held_.erase(held);
    }
    return fits;
  }
  void GiveFrom(uint64_t caller, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    taken_ -= bytes;
    const auto held = held_.find(caller);
    if (held != held_.end() && (held->second -= bytes) == 0) held_.erase(held);
  }
  uint64_t limit() const { return limit_; }

 private:
  const uint64_t limit_;
  std::mutex mutex_;
  uint64_t taken_ = 0;
  std::unordered_map<uint64_t, uint64_t> held_;  // by caller
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_BYTE_BUDGET_H_
