#include "kernels/cpu/memory.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "fmt/format.h"

namespace nibble::cpu {

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

CpuReservation::~CpuReservation() { budget_->Give(bytes_); }

uint64_t CpuReservation::Draw(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t drawn = std::min(bytes, bytes_);
  bytes_ -= drawn;
  return drawn;
}

Allocation::~Allocation() {
  if (data_ == nullptr) return;
  std::free(data_);
  budget_->Give(size_);
}

Allocation::Allocation(Allocation&& other) noexcept
    : budget_(std::move(other.budget_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Allocation& Allocation::operator=(Allocation&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

StatusOr<Allocation> Allocation::Create(std::shared_ptr<MemoryBudget> budget, uint64_t bytes,
                                        CpuReservation* reservation, std::string_view purpose) {
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max() - kAlignment;
  // Past every budget, so that rounding up cannot wrap: refused with the usual message.
  if (bytes > kLargest) {
    NIBBLE_RETURN_IF_ERROR(budget->Take(bytes, purpose));
  }
  const uint64_t size = AlignedSize(bytes);
  const uint64_t drawn = reservation == nullptr ? 0 : reservation->Draw(size);
  if (Status taken = budget->Take(size - drawn, purpose); !taken.ok()) {
    budget->Give(drawn);
    return taken;
  }
  void* data = std::aligned_alloc(kAlignment, size);
  if (data == nullptr) {
    budget->Give(size);
    return absl::ResourceExhaustedError(
        fmt::format("host memory: {} needs {} bytes; the system refused them", purpose, size));
  }
  Allocation allocation;
  allocation.budget_ = std::move(budget);
  allocation.data_ = static_cast<std::byte*>(data);
  allocation.size_ = size;
  return allocation;
}

}  // namespace nibble::cpu
