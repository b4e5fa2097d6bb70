// Memory of one CPU device, drawn from its budget.
#ifndef NIBBLE_KERNELS_CPU_MEMORY_H_
#define NIBBLE_KERNELS_CPU_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/core/memory_budget.h"
#include "nibble/backend.h"
#include "nibble/status.h"

namespace nibble::cpu {

using core::AlignedSize;
using core::kAlignment;
using core::MemoryBudget;
using CpuReservation = core::BudgetReservation;

// Aligned memory that counts against a budget while it lives.
class Allocation {
 public:
  Allocation() = default;
  ~Allocation();
  Allocation(Allocation&& other) noexcept;
  Allocation& operator=(Allocation&& other) noexcept;

  // Takes AlignedSize(bytes) from `reservation` first (may be null), then from `budget`. The memory
  // is not initialized.
  static StatusOr<Allocation> Create(std::shared_ptr<MemoryBudget> budget, uint64_t bytes,
                                     CpuReservation* reservation, std::string_view purpose);

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(Allocation allocation, uint64_t bytes)
      : Buffer(allocation.data(), bytes), allocation_(std::move(allocation)) {}

 private:
  Allocation allocation_;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_MEMORY_H_
