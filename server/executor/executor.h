// Runs batches on one device. Each lane (a thread, a stream, its staging memory) takes a batch
// through copy in, kernel, copy out and scatter; with two lanes these overlap between two batches.
#ifndef NIBBLE_SERVER_EXECUTOR_EXECUTOR_H_
#define NIBBLE_SERVER_EXECUTOR_EXECUTOR_H_

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "nibble/backend.h"
#include "server/batcher/batcher.h"
#include "server/executor/tuned_choices.h"
#include "server/metrics/metrics.h"

namespace nibble::server {

class Executor : public BatchExecutor {
 public:
  struct Options {
    int lanes = 1;  // batches that run at once
    // While batches follow one another this closely, one idle lane waits for the next one awake, at
    // most this long: waking a thread can take longer than the batch. 0: idle lanes sleep.
    std::chrono::microseconds spin{0};
    int copy_helpers = 0;           // threads that help the lanes to copy large batches
    TunedChoices* tuned = nullptr;  // null: the built-in choices; outlives the executor
  };
  // `metrics` may be null. `on_device_lost` is called once, from a lane, when the device reports a
  // sticky error. `device` and `metrics` outlive the executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      Device& device, const Options& options, Metrics* metrics,
      std::function<void(const absl::Status&)> on_device_lost);
  // Batches that were accepted are finished first.
  ~Executor() override = default;

  // A piece's payload is a Job. Rows are copied once into staging memory and once out of it.
  void Run(Batch batch, std::function<void(const BatchResult&)> done) override = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_EXECUTOR_H_
