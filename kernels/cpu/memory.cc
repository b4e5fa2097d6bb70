#include "kernels/cpu/memory.h"

#include <cstdlib>
#include <utility>

#include "fmt/format.h"

namespace nibble::cpu {

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
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t size,
                          core::TakeAligned(*budget, bytes, reservation, purpose));
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
