// Bytes of one device's memory: what allocations, weights and reservations draw from.
#ifndef NIBBLE_KERNELS_CORE_MEMORY_BUDGET_H_
#define NIBBLE_KERNELS_CORE_MEMORY_BUDGET_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "nibble/backend.h"
#include "nibble/status.h"

namespace nibble::core {

inline constexpr uint64_t kAlignment = 256;

// `bytes` rounded up to whole units of kAlignment, at least one. `bytes` is below 2^63.
constexpr uint64_t AlignedSize(uint64_t bytes) {
  return bytes == 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Thread safe. Buffers, weights and reservations share it, so that they may outlive the device.
class MemoryBudget {
 public:
  MemoryBudget(std::string_view device_id, uint64_t total_bytes)
      : device_id_(device_id), total_bytes_(total_bytes) {}

  // kResourceExhausted with the needed and the free bytes. `purpose` names what asks.
  Status Take(uint64_t bytes, std::string_view purpose);
  void Give(uint64_t bytes);
  MemoryUse use() const;

 private:
  const std::string device_id_;
  const uint64_t total_bytes_;
  mutable std::mutex mutex_;
  uint64_t used_bytes_ = 0;
};

// Bytes taken from a budget that uploads may draw.
class BudgetReservation final : public Device::Reservation {
 public:
  // `bytes` are already taken from `budget`.
  BudgetReservation(std::shared_ptr<MemoryBudget> budget, uint64_t bytes)
      : budget_(std::move(budget)), bytes_(bytes) {}
  ~BudgetReservation() override;

  const MemoryBudget* budget() const { return budget_.get(); }
  // Hands up to `bytes` over to the caller, who returns them to the budget; says how many.
  uint64_t Draw(uint64_t bytes);

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::mutex mutex_;
  uint64_t bytes_;
};

// Takes AlignedSize(bytes), first from `reservation` (may be null), then from `budget`; returns
// what was taken, to be given back to `budget`.
StatusOr<uint64_t> TakeAligned(MemoryBudget& budget, uint64_t bytes, BudgetReservation* reservation,
                               std::string_view purpose);

}  // namespace nibble::core

#endif  // NIBBLE_KERNELS_CORE_MEMORY_BUDGET_H_
