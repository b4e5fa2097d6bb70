#include "server/executor/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "nibble/status.h"
#include "server/executor/copy_crew.h"
#include "server/executor/lane.h"

namespace nibble::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Tells the processor that this is a loop that waits.
void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How closely batches follow one another: a moving mean of the time between them.
class Pace {
 public:
  explicit Pace(std::chrono::microseconds limit) : limit_(limit) {}

  void BatchArrived(SteadyClock::time_point now) {
    constexpr int kWeight = 8;
    // A long pause counts as twice the limit, so that a few close ones make up for it.
    const SteadyClock::duration gap = std::min<SteadyClock::duration>(now - last_, 2 * limit_);
    mean_ += (gap - mean_) / kWeight;
    last_ = now;
  }
  bool IsClose() const { return mean_ < limit_; }
  std::chrono::microseconds limit() const { return limit_; }

 private:
  const std::chrono::microseconds limit_;
  SteadyClock::time_point last_{};
  SteadyClock::duration mean_ = 2 * limit_;
};

class LanesExecutor : public Executor {
 public:
  LanesExecutor(Device& device, const Options& options, std::unique_ptr<CopyCrew> crew,
                std::vector<std::unique_ptr<Lane>> lanes,
                std::function<void(const absl::Status&)> on_device_lost)
      : device_(device),
        crew_(std::move(crew)),
        lanes_(std::move(lanes)),
        on_device_lost_(std::move(on_device_lost)),
        pace_(options.spin) {
    threads_.reserve(lanes_.size());
    for (auto& lane : lanes_) threads_.emplace_back([this, &lane] { Loop(*lane); });
  }

  ~LanesExecutor() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      signals_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(Batch batch, std::function<void(const BatchResult&)> done) override {
    bool wake = true;
    {
      std::lock_guard lock(mutex_);
      pace_.BatchArrived(SteadyClock::now());
      waiting_.push_back({std::move(batch), std::move(done)});
      signals_.fetch_add(1, std::memory_order_release);
      // The lane that waits awake takes one batch; others are for those asleep.
      wake = !spinning_ || waiting_.size() > 1;
    }
    if (wake) wake_.notify_one();
  }

 private:
  struct Waiting {
    Batch batch;
    std::function<void(const BatchResult&)> done;
  };

  void Loop(Lane& lane) {
    while (true) {
      std::optional<Waiting> next = Next();
      if (!next.has_value()) return;
      const BatchResult result = lane.Run(next->batch);
      if (!result.status.ok()) ReportIfLost();
      // The pieces keep weights and requests alive; they go before the requests are answered.
      next->batch = Batch{};
      next->done(result);
    }
  }

  // Waits for a batch; none when the executor ends.
  std::optional<Waiting> Next() {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return stopping_ || !waiting_.empty(); };
    bool signalled = true;
    while (signalled && !ready() && !spinning_ && pace_.IsClose()) {
      spinning_ = true;
      const uint64_t seen = signals_.load(std::memory_order_relaxed);
      lock.unlock();
      signalled = SpinUntilSignal(seen);
      lock.lock();
      spinning_ = false;
    }
    wake_.wait(lock, ready);
    if (waiting_.empty()) return std::nullopt;
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    return next;
  }

  // False when the time is over.
  bool SpinUntilSignal(uint64_t seen) const {
    constexpr int kLooksBetweenTimes = 64;
    const SteadyClock::time_point end = SteadyClock::now() + pace_.limit();
    do {
      for (int look = 0; look < kLooksBetweenTimes; ++look) {
        if (signals_.load(std::memory_order_acquire) != seen) return true;
        SpinPause();
      }
    } while (SteadyClock::now() < end);
    return false;
  }

  void ReportIfLost() {
    const absl::Status health = device_.health();
    if (health.ok()) return;
    std::call_once(lost_, [&] {
      if (on_device_lost_) on_device_lost_(health);
    });
  }

  Device& device_;
  std::unique_ptr<CopyCrew> crew_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::function<void(const absl::Status&)> on_device_lost_;
  std::once_flag lost_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Waiting> waiting_;
  bool stopping_ = false;
  bool spinning_ = false;             // a lane waits awake
  std::atomic<uint64_t> signals_{0};  // counts what it waits for
  Pace pace_;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    Device& device, const Options& options, Metrics* metrics,
    std::function<void(const absl::Status&)> on_device_lost) {
  auto crew = std::make_unique<CopyCrew>(options.copy_helpers);
  std::vector<std::unique_ptr<Lane>> created;
  for (int i = 0; i < options.lanes; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane,
                            Lane::Create(device, metrics, options.tuned, *crew));
    created.push_back(std::move(lane));
  }
  return std::make_unique<LanesExecutor>(device, options, std::move(crew), std::move(created),
                                         std::move(on_device_lost));
}

}  // namespace nibble::server
