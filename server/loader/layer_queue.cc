#include "server/loader/layer_queue.h"

#include <new>
#include <system_error>
#include <utility>

namespace nibble::server {

LayerQueue::LayerQueue(int threads, int64_t budget_bytes, Work work)
    : budget_bytes_(budget_bytes), work_(std::move(work)) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // else there are fewer
  }
}

LayerQueue::~LayerQueue() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    waiting_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

LayerQueue::State LayerQueue::Push(size_t layer, int64_t bytes, int64_t cost_bytes) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] {
    return !state_.status.ok() || cost_bytes_ == 0 || cost_bytes_ + cost_bytes <= budget_bytes_;
  });
  if (!state_.status.ok()) return state_;
  cost_bytes_ += cost_bytes;
  waiting_.push_back({layer, bytes, cost_bytes});
  wake_.notify_all();
  return state_;
}

LayerQueue::State LayerQueue::WaitForProgress() {
  std::unique_lock lock(mutex_);
  const int before = state_.layers_done;
  wake_.wait(lock, [&] {
    return !state_.status.ok() || state_.layers_done > before ||
           (waiting_.empty() && in_work_ == 0);
  });
  return state_;
}

LayerQueue::State LayerQueue::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

absl::Status LayerQueue::WorkOn(size_t layer) const try {
  return work_(layer);
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("the system refused host memory for a layer");
}

void LayerQueue::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Item item = waiting_.front();
    waiting_.pop_front();
    ++in_work_;
    lock.unlock();
    absl::Status status = WorkOn(item.layer);
    lock.lock();
    --in_work_;
    cost_bytes_ -= item.cost_bytes;
    if (status.ok()) {
      ++state_.layers_done;
      state_.bytes_done += item.bytes;
    } else if (state_.status.ok()) {
      state_.status = std::move(status);
      waiting_.clear();
    }
    wake_.notify_all();
  }
}

}  // namespace nibble::server
