#include "kernels/core/memory_budget.h"

#include <algorithm>
#include <limits>

#include "fmt/format.h"

namespace nibble::core {

Status MemoryBudget::Take(uint64_t bytes, std::string_view purpose) {
  const std::lock_guard lock(mutex_);
  const uint64_t free_bytes = total_bytes_ - used_bytes_;
  if (bytes > free_bytes) {
    return absl::ResourceExhaustedError(
        fmt::format("memory of {}: {} needs {} bytes; {} of {} bytes are free", device_id_, purpose,
                    bytes, free_bytes, total_bytes_));
  }
  used_bytes_ += bytes;
  return absl::OkStatus();
}

void MemoryBudget::Give(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
}

MemoryUse MemoryBudget::use() const {
  const std::lock_guard lock(mutex_);
  return {total_bytes_, used_bytes_};
}

BudgetReservation::~BudgetReservation() { budget_->Give(bytes_); }

uint64_t BudgetReservation::Draw(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t drawn = std::min(bytes, bytes_);
  bytes_ -= drawn;
  return drawn;
}

StatusOr<uint64_t> TakeAligned(MemoryBudget& budget, uint64_t bytes, BudgetReservation* reservation,
                               std::string_view purpose) {
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max() - kAlignment;
  // Past every budget, so that rounding up cannot wrap: refused with the usual message.
  if (bytes > kLargest) {
    NIBBLE_RETURN_IF_ERROR(budget.Take(bytes, purpose));
  }
  const uint64_t size = AlignedSize(bytes);
  const uint64_t drawn = reservation == nullptr ? 0 : reservation->Draw(size);
  if (Status taken = budget.Take(size - drawn, purpose); !taken.ok()) {
    budget.Give(drawn);
    return taken;
  }
  return size;
}

}  // namespace nibble::core
