// Memory of one CPU device: a budget that allocations, weights and reservations draw from.
#ifndef NIBBLE_KERNELS_CPU_MEMORY_H_
#define NIBBLE_KERNELS_CPU_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "nibble/backend.h"
#include "nibble/status.h"

namespace nibble::cpu {

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
class CpuReservation final : public Device::Reservation {
 public:
  // `bytes` are already taken from `budget`.
  CpuReservation(std::shared_ptr<MemoryBudget> budget, uint64_t bytes)
      : budget_(std::move(budget)), bytes_(bytes) {}
  ~CpuReservation() override;

  const MemoryBudget* budget() const { return budget_.get(); }
  // Hands up to `bytes` over to the caller, who returns them to the budget; says how many.
  uint64_t Draw(uint64_t bytes);

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::mutex mutex_;
  uint64_t bytes_;
};

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
