#include "server/checkpoint/scratch_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace nibble::checkpoint {
namespace {

// Smaller ones are left to the allocator.
constexpr size_t kMinPooledBytes = size_t{256} << 10;
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

ScratchPool::Pages::Pages(size_t bytes) {
  const size_t rounded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* const address =
      mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  madvise(address, rounded, MADV_HUGEPAGE);  // fewer faults where the system has it
  data_ = static_cast<std::byte*>(address);
  size_ = rounded;
}

ScratchPool::Pages::~Pages() { munmap(data_, size_); }

struct ScratchPool::Held {
  Held(std::weak_ptr<ScratchPool> from, std::unique_ptr<Pages> taken)
      : pool(std::move(from)), pages(std::move(taken)) {}
  ~Held() {
    if (const std::shared_ptr<ScratchPool> alive = pool.lock()) alive->GiveBack(std::move(pages));
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  std::weak_ptr<ScratchPool> pool;
  std::unique_ptr<Pages> pages;
};

ScratchPool::Lease ScratchPool::Take(size_t bytes) {
  if (bytes < kMinPooledBytes) {
    std::shared_ptr<std::byte[]> owned(new std::byte[bytes]);
    return {{owned.get(), bytes}, owned};
  }
  std::unique_ptr<Pages> pages;
  {
    std::lock_guard lock(mutex_);
    const auto fits = std::find_if(kept_.begin(), kept_.end(), [&](const auto& kept) {
      return kept->size() >= bytes && kept->size() / 2 <= bytes + kHugePageBytes;
    });
    if (fits != kept_.end()) {
      pages = std::move(*fits);
      kept_.erase(fits);
      kept_bytes_ -= pages->size();
    }
  }
  if (pages == nullptr) pages = std::make_unique<Pages>(bytes);
  const std::span<std::byte> data(pages->data(), bytes);
  return {data, std::make_shared<Held>(weak_from_this(), std::move(pages))};
}

void ScratchPool::GiveBack(std::unique_ptr<Pages> pages) {
  std::lock_guard lock(mutex_);
  if (kept_bytes_ + pages->size() > kMaxKeptBytes) return;
  kept_bytes_ += pages->size();
  kept_.push_back(std::move(pages));
}

}  // namespace nibble::checkpoint
