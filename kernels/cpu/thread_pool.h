// A fixed set of threads that runs one parallel loop at a time.
#ifndef NIBBLE_KERNELS_CPU_THREAD_POOL_H_
#define NIBBLE_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "nibble/status.h"

namespace nibble::cpu {

class ThreadPool {
 public:
  // `threads` in all, the caller of ParallelFor included; at least 1. kResourceExhausted when the
  // system refuses a thread.
  static StatusOr<std::unique_ptr<ThreadPool>> Create(int threads);
  ~ThreadPool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(task, worker) for every task in [0, tasks); worker in [0, threads()) tells which thread
  // runs it (0: the calling one). Which worker gets which task is a matter of timing, so a task
  // may write only what is its own. Returns when all are done. One call at a time. `body` must not
  // throw.
  void ParallelFor(int64_t tasks, const std::function<void(int64_t task, int worker)>& body);

  // body(begin, end, worker) for consecutive ranges of `grain` (at least 1) items of [0, count).
  void ParallelRanges(int64_t count, int64_t grain,
                      const std::function<void(int64_t begin, int64_t end, int worker)>& body);

 private:
  ThreadPool() = default;
  void Work(int worker);
  void RunTasks(int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  uint64_t loop_ = 0;  // counts the loops, so that a worker runs each one once
  int busy_workers_ = 0;
  bool stop_ = false;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<int64_t> next_task_{0};
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_THREAD_POOL_H_
