#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "fmt/format.h"
#include "nibble/tensor.h"

namespace nibble::cpu {

StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Create(int threads) {
  std::unique_ptr<ThreadPool> pool(new ThreadPool);
  try {
    pool->workers_.reserve(static_cast<size_t>(threads - 1));
    for (int worker = 1; worker < threads; ++worker) {
      pool->workers_.emplace_back([raw = pool.get(), worker] { raw->Work(worker); });
    }
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        fmt::format("threads: expected {} to start; received '{}'", threads, error.what()));
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t tasks, const std::function<void(int64_t, int)>& body) {
  if (tasks <= 1 || workers_.empty()) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    tasks_ = tasks;
    next_task_.store(0, std::memory_order_relaxed);
    busy_workers_ = static_cast<int>(workers_.size());
    ++loop_;
  }
  start_.notify_all();
  RunTasks(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_workers_ == 0; });
}

void ThreadPool::ParallelRanges(int64_t count, int64_t grain,
                                const std::function<void(int64_t, int64_t, int)>& body) {
  ParallelFor(CeilDiv(count, grain), [&](int64_t task, int worker) {
    const int64_t begin = task * grain;
    body(begin, begin + std::min(grain, count - begin), worker);
  });
}

void ThreadPool::RunTasks(int worker) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    (*body_)(task, worker);
  }
}

void ThreadPool::Work(int worker) {
  uint64_t seen_loop = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || loop_ != seen_loop; });
      if (stop_) return;
      seen_loop = loop_;
    }
    RunTasks(worker);
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      last = --busy_workers_ == 0;
    }
    if (last) done_.notify_one();
  }
}

}  // namespace nibble::cpu
