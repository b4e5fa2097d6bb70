// One GPU as the backend's objects share it: its ordinal, its memory budget, and the error that
// ended it, if one did.
#ifndef NIBBLE_KERNELS_CUDA_CONTEXT_H_
#define NIBBLE_KERNELS_CUDA_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <cuda_runtime.h>

#include "kernels/core/memory_budget.h"
#include "nibble/status.h"

namespace nibble::cuda {

// Makes a device current for this thread while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int ordinal);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

// Thread safe.
class Context {
 public:
  Context(std::string id, int ordinal, uint64_t memory_bytes)
      : id_(std::move(id)),
        ordinal_(ordinal),
        budget_(std::make_shared<core::MemoryBudget>(id_, memory_bytes)) {}

  const std::string& id() const { return id_; }
  int ordinal() const { return ordinal_; }
  const std::shared_ptr<core::MemoryBudget>& budget() const { return budget_; }

  // The status of a CUDA call. An error that leaves the device unusable is kept: from then on every
  // Check and health() answer it, as kUnavailable.
  Status Check(cudaError_t error, std::string_view what);
  Status health() const;

 private:
  const std::string id_;
  const int ordinal_;
  const std::shared_ptr<core::MemoryBudget> budget_;
  mutable std::mutex mutex_;
  Status health_;
};

// Device memory that counts against the budget while it lives.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  // Draws from `reservation` first (may be null). Aligned to 256 bytes, not initialized.
  static StatusOr<DeviceMemory> Create(std::shared_ptr<Context> context, uint64_t bytes,
                                       core::BudgetReservation* reservation,
                                       std::string_view purpose);

  char* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::shared_ptr<Context> context_;
  char* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_CONTEXT_H_
