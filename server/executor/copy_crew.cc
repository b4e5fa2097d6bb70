#include "server/executor/copy_crew.h"

namespace nibble::server {

CopyCrew::CopyCrew(int helpers) {
  for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { Help(); });
}

CopyCrew::~CopyCrew() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyCrew::Run(size_t count, const std::function<void(size_t)>& copy,
                   const std::function<void(size_t)>& progress) {
  std::unique_lock in_use(in_use_, std::defer_lock);
  size_t copied = 0;  // every one below was
  const auto takes_helpers = [&] {
    return !threads_.empty() && count - copied >= 2 && in_use.try_lock();
  };
  while (copied < count && !takes_helpers()) {
    copy(copied);
    progress(++copied);
  }
  if (copied == count) return;
  Copies copies{.copy = copy,
                .count = count,
                .next = copied,
                .done = std::make_unique<std::atomic<bool>[]>(count)};
  {
    std::lock_guard lock(mutex_);
    copies_ = &copies;
    ++call_;
  }
  changed_.notify_all();
  while (copies.Take()) {
    const size_t before = copied;
    while (copied < count && copies.done[copied].load(std::memory_order_acquire)) ++copied;
    if (copied > before) progress(copied);
  }
  {
    std::unique_lock lock(mutex_);
    copies_ = nullptr;  // a helper that wakes now has nothing to do
    changed_.wait(lock, [this] { return helping_ == 0; });
  }
  // At most a piece of each helper, and what lies behind it.
  if (copied < count) progress(count);
}

void CopyCrew::Help() {
  size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (copies_ != nullptr && call_ != seen); });
    if (stopping_) return;
    seen = call_;
    Copies& copies = *copies_;
    ++helping_;
    lock.unlock();
    while (copies.Take()) {
    }
    lock.lock();
    if (--helping_ == 0) changed_.notify_all();
  }
}

bool CopyCrew::Copies::Take() {
  const size_t part = next.fetch_add(1, std::memory_order_relaxed);
  if (part >= count) return false;
  copy(part);
  done[part].store(true, std::memory_order_release);
  return true;
}

}  // namespace nibble::server
