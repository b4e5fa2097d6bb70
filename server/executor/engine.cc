#include "server/executor/engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "nibble/ops.h"
#include "nibble/status.h"
#include "server/executor/executor.h"

namespace nibble::server {
namespace {

constexpr size_t kOps = 4;
constexpr size_t kReasons = 4;

std::string_view ReasonName(RejectReason reason) {
  switch (reason) {
    case RejectReason::kQueueFull:
      return "queue_full";
    case RejectReason::kDraining:
      return "draining";
    case RejectReason::kExpired:
      return "deadline_exceeded";
    case RejectReason::kCancelled:
      return "cancelled";
  }
  return "other";
}

// How long a lane waits awake: about the time between the calls of one caller. Only where there are
// cores to spare; the CPU backend computes on all of them.
std::chrono::microseconds SpinOf(const DeviceInfo& info) {
  constexpr unsigned kManyCores = 8;
  constexpr std::chrono::microseconds kSpin{500};
  if (info.kind == BackendKind::kCpu || std::thread::hardware_concurrency() < kManyCores) {
    return std::chrono::microseconds(0);
  }
  return kSpin;
}

class MetricsObserver : public BatcherObserver {
 public:
  MetricsObserver(Metrics& metrics, const std::string& device) : device_(metrics.Device(device)) {
    for (size_t op = 0; op < kOps; ++op) ops_[op] = metrics.Op(OpName(static_cast<Op>(op)));
    for (size_t reason = 0; reason < kReasons; ++reason) {
      rejections_[reason] = metrics.Rejection(ReasonName(static_cast<RejectReason>(reason)));
    }
  }

  void OnQueueRows(int64_t queued_rows) override { device_->SetQueueRows(queued_rows); }
  void OnBatchFormed(int op, int64_t rows) override {
    batches_.fetch_add(1, std::memory_order_relaxed);
    ops_[static_cast<size_t>(op)]->BatchFormed(rows);
  }
  void OnQueued(int op, double queue_us) override {
    ops_[static_cast<size_t>(op)]->Queued(queue_us * 1e-6);
  }
  void OnRejected(RejectReason reason) override {
    rejections_[static_cast<size_t>(reason)]->Rejected();
  }
  uint64_t batches() const { return batches_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> batches_{0};
  DeviceMetrics* device_;
  std::array<OpMetrics*, kOps> ops_{};
  std::array<RejectionMetrics*, kReasons> rejections_{};
};

// Memory serves a few threads better than one, but gRPC needs cores too.
int CopyHelpers() { return std::min(static_cast<int>(std::thread::hardware_concurrency()) / 4, 3); }

// Members are destroyed from the last to the first: the executor finishes its batches into a live
// batcher.
struct DeviceQueue {
  std::unique_ptr<MetricsObserver> observer;
  std::unique_ptr<Batcher> batcher;
  std::unique_ptr<Executor> executor;
  TunedChoices* tuned = nullptr;
};

class DevicesEngine : public Engine {
 public:
  explicit DevicesEngine(std::function<void(const absl::Status&)> on_device_lost)
      : on_device_lost_(std::move(on_device_lost)) {}

  absl::Status Add(const EngineOptions& options, Device& device, Clock& clock, Metrics& metrics) {
    Batcher::Options batching = options.batcher;
    if (batching.batches_in_flight == 0) {
      batching.batches_in_flight = device.info().batches_in_flight;
    }
    const size_t index = queues_.size();
    DeviceQueue queue;
    if (!options.tuned.empty()) queue.tuned = options.tuned[index];
    const Executor::Options lanes{.lanes = batching.batches_in_flight,
                                  .spin = SpinOf(device.info()),
                                  .copy_helpers = CopyHelpers(),
                                  .tuned = queue.tuned};
    NIBBLE_ASSIGN_OR_RETURN(
        queue.executor,
        Executor::Create(device, lanes, &metrics, [this, index](const absl::Status& status) {
          queues_[index].batcher->FailQueued(status);
          if (on_device_lost_) on_device_lost_(status);
        }));
    queue.observer = std::make_unique<MetricsObserver>(metrics, device.info().id);
    queue.batcher =
        std::make_unique<Batcher>(batching, clock, *queue.executor, queue.observer.get());
    queues_.push_back(std::move(queue));
    return absl::OkStatus();
  }

  Batcher& batcher(size_t device_index) override { return *queues_[device_index].batcher; }

  DeviceActivity activity(size_t device_index) const override {
    const DeviceQueue& queue = queues_[device_index];
    // In this order: a request that ends in between has begun a batch.
    const int64_t pending = queue.batcher->pending();
    return {pending, queue.observer->batches()};
  }

  const TunedChoices* tuned(size_t device_index) const override {
    return queues_[device_index].tuned;
  }

  size_t LeastLoadedDevice() const override {
    size_t best = 0;
    for (size_t i = 1; i < queues_.size(); ++i) {
      if (queues_[i].batcher->queued_rows() < queues_[best].batcher->queued_rows()) best = i;
    }
    return best;
  }

  void StopAccepting() override {
    for (DeviceQueue& queue : queues_) queue.batcher->StopAccepting();
  }

  void FailQueued(const absl::Status& status) override {
    for (DeviceQueue& queue : queues_) queue.batcher->FailQueued(status);
  }

 private:
  const std::function<void(const absl::Status&)> on_device_lost_;
  std::vector<DeviceQueue> queues_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       const std::vector<Device*>& devices,
                                                       Clock& clock, Metrics& metrics) {
  auto engine = std::make_unique<DevicesEngine>(options.on_device_lost);
  for (Device* device : devices) {
    NIBBLE_RETURN_IF_ERROR(engine->Add(options, *device, clock, metrics));
  }
  return engine;
}

}  // namespace nibble::server
