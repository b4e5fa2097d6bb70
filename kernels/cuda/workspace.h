// Parts of a matmul's workspace, placed one after the other.
#ifndef NIBBLE_KERNELS_CUDA_WORKSPACE_H_
#define NIBBLE_KERNELS_CUDA_WORKSPACE_H_

#include <cstdint>
#include <limits>

#include "kernels/core/memory_budget.h"
#include "nibble/format.h"

namespace nibble::cuda {

inline int64_t RoundUp(int64_t value, int64_t unit) { return CeilDiv(value, unit) * unit; }

// Whether rows start at multiples of 16 bytes.
inline bool IsAligned(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

// Saturates at 2^63 - 1.
class Workspace {
 public:
  uint64_t Place(int64_t rows, int64_t row_bytes) {
    const uint64_t offset = total_;
    const auto bytes = static_cast<uint64_t>(CheckedMul(rows, row_bytes).value_or(kTooLarge));
    const uint64_t largest = kTooLarge - core::kAlignment;
    total_ =
        bytes > largest || total_ > largest - bytes ? kTooLarge : total_ + core::AlignedSize(bytes);
    return offset;
  }
  uint64_t total() const { return total_; }

 private:
  static constexpr uint64_t kTooLarge = std::numeric_limits<int64_t>::max();
  uint64_t total_ = 0;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_WORKSPACE_H_
