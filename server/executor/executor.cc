#include "server/executor/executor.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "nibble/status.h"
#include "server/executor/lane.h"

namespace nibble::server {
namespace {

class LanesExecutor : public Executor {
 public:
  LanesExecutor(Device& device, std::vector<std::unique_ptr<Lane>> lanes,
                std::function<void(const absl::Status&)> on_device_lost)
      : device_(device), lanes_(std::move(lanes)), on_device_lost_(std::move(on_device_lost)) {
    threads_.reserve(lanes_.size());
    for (auto& lane : lanes_) threads_.emplace_back([this, &lane] { Loop(*lane); });
  }

  ~LanesExecutor() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(Batch batch, std::function<void(const BatchResult&)> done) override {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back({std::move(batch), std::move(done)});
    }
    wake_.notify_one();
  }

 private:
  struct Waiting {
    Batch batch;
    std::function<void(const BatchResult&)> done;
  };

  void Loop(Lane& lane) {
    while (true) {
      Waiting next;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      const BatchResult result = lane.Run(next.batch);
      if (!result.status.ok()) ReportIfLost();
      // The pieces keep weights and requests alive; they go before the requests are answered.
      next.batch = Batch{};
      next.done(result);
    }
  }

  void ReportIfLost() {
    const absl::Status health = device_.health();
    if (health.ok()) return;
    std::call_once(lost_, [&] {
      if (on_device_lost_) on_device_lost_(health);
    });
  }

  Device& device_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::function<void(const absl::Status&)> on_device_lost_;
  std::once_flag lost_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Waiting> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    Device& device, int lanes, Metrics* metrics,
    std::function<void(const absl::Status&)> on_device_lost) {
  std::vector<std::unique_ptr<Lane>> created;
  for (int i = 0; i < lanes; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane, Lane::Create(device, metrics));
    created.push_back(std::move(lane));
  }
  return std::make_unique<LanesExecutor>(device, std::move(created), std::move(on_device_lost));
}

}  // namespace nibble::server
