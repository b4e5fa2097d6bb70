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

void CopyCrew::Run(size_t count, const std::function<void(size_t)>& copy) {
  std::unique_lock in_use(in_use_, std::try_to_lock);
  if (threads_.empty() || count < 2 || !in_use.owns_lock()) {
    for (size_t i = 0; i < count; ++i) copy(i);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    next_.store(0, std::memory_order_relaxed);
    copy_ = &copy;
    count_ = count;
    ++call_;
  }
  changed_.notify_all();
  TakeParts(copy, count);
  std::unique_lock lock(mutex_);
  copy_ = nullptr;  // a helper that wakes now has nothing to do
  changed_.wait(lock, [this] { return helping_ == 0; });
}

void CopyCrew::Help() {
  size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (copy_ != nullptr && call_ != seen); });
    if (stopping_) return;
    seen = call_;
    const std::function<void(size_t)>& copy = *copy_;
    const size_t count = count_;
    ++helping_;
    lock.unlock();
    TakeParts(copy, count);
    lock.lock();
    if (--helping_ == 0) changed_.notify_all();
  }
}

void CopyCrew::TakeParts(const std::function<void(size_t)>& copy, size_t count) {
  while (true) {
    const size_t part = next_.fetch_add(1, std::memory_order_relaxed);
    if (part >= count) return;
    copy(part);
  }
}

}  // namespace nibble::server
