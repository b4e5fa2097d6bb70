// A batch executor whose strings a test pulls: batches are held until the test releases them.
#ifndef NIBBLE_TESTS_SUPPORT_PUPPET_EXECUTOR_H_
#define NIBBLE_TESTS_SUPPORT_PUPPET_EXECUTOR_H_

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "server/batcher/batcher.h"

namespace nibble::testing {

class PuppetExecutor final : public server::BatchExecutor {
 public:
  using Done = std::function<void(const server::BatchResult&)>;
  struct Held {
    server::Batch batch;
    Done done;
  };

  void Run(server::Batch batch, Done done) override {
    server::BatchResult result;
    {
      std::lock_guard lock(mutex_);
      ++runs_;
      if (!complete_in_run_) {
        held_.push_back({std::move(batch), std::move(done)});
        return;
      }
      result = result_;
    }
    done(result);
  }

  // From now on batches complete within Run, with `result`.
  void CompleteInRun(server::BatchResult result = {}) {
    std::lock_guard lock(mutex_);
    complete_in_run_ = true;
    result_ = std::move(result);
  }

  // Completes the held batch `index` (0 the oldest) on this thread, and returns what it was.
  server::Batch Release(size_t index = 0, const server::BatchResult& result = {}) {
    Held released;
    {
      std::lock_guard lock(mutex_);
      released = std::move(held_.at(index));
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
    }
    released.done(result);
    return std::move(released.batch);
  }

  // Batches that the test has not released.
  size_t held() const {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  // A copy of the held batch `index`.
  server::Batch batch(size_t index = 0) const {
    std::lock_guard lock(mutex_);
    return held_.at(index).batch;
  }
  // Batches that Run was ever called with.
  size_t runs() const {
    std::lock_guard lock(mutex_);
    return runs_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Held> held_;
  size_t runs_ = 0;
  bool complete_in_run_ = false;
  server::BatchResult result_;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_SUPPORT_PUPPET_EXECUTOR_H_
