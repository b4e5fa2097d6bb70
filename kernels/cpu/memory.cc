#include "kernels/cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "fmt/format.h"

namespace nibble::cpu {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// What is large has pages of its own: huge ones where the system has them, since filling small ones
// costs more than the copy does, and given back at once when it is freed.
bool HasOwnPages(uint64_t bytes) { return bytes >= kHugePageBytes; }

void* AllocatePages(uint64_t bytes) {
  // Aligned by asking for more and giving back what is too much.
  const uint64_t asked = bytes + kHugePageBytes;
  void* const mapped =
      mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > begin) munmap(mapped, aligned - begin);
  // A page that is partly in use stays.
  const auto page_bytes = static_cast<uintptr_t>(getpagesize());
  const uintptr_t end = (aligned + bytes + page_bytes - 1) / page_bytes * page_bytes;
  if (begin + asked > end) munmap(reinterpret_cast<void*>(end), begin + asked - end);
  void* const data = reinterpret_cast<void*>(aligned);
  madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

}  // namespace

Allocation::~Allocation() {
  if (data_ == nullptr) return;
  if (HasOwnPages(size_)) {
    munmap(data_, size_);
  } else {
    std::free(data_);
  }
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
  void* data = HasOwnPages(size) ? AllocatePages(size) : std::aligned_alloc(kAlignment, size);
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
