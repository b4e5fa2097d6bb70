// The execution side of the server as one object: a batcher and an executor for each device.
#ifndef NIBBLE_SERVER_EXECUTOR_ENGINE_H_
#define NIBBLE_SERVER_EXECUTOR_ENGINE_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/backend.h"
#include "server/batcher/batcher.h"
#include "server/clock/clock.h"
#include "server/executor/tuned_choices.h"
#include "server/metrics/metrics.h"

namespace nibble::server {

struct EngineOptions {
  Batcher::Options batcher;  // of each device; batches_in_flight of 0: what the device suggests
  // Called once for a device that is lost, with its status. Queued work of that device has then
  // been failed.
  std::function<void(const absl::Status&)> on_device_lost;
  // Of each device, or empty: the built-in choices. They outlive the engine.
  std::vector<TunedChoices*> tuned;
};

// What a device has to do for callers.
struct DeviceActivity {
  int64_t pending = 0;   // requests queued or running
  uint64_t batches = 0;  // batches begun since the start
};

class Engine {
 public:
  // Devices, clock and metrics outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        const std::vector<Device*>& devices,
                                                        Clock& clock, Metrics& metrics);
  virtual ~Engine() = default;

  virtual Batcher& batcher(size_t device_index) = 0;
  virtual DeviceActivity activity(size_t device_index) const = 0;
  // Null where choices are the built-in ones.
  virtual const TunedChoices* tuned(size_t device_index) const = 0;
  // The device with the fewest queued rows, for work that no resident weight ties to one.
  virtual size_t LeastLoadedDevice() const = 0;
  virtual void StopAccepting() = 0;
  // Ends what is queued and not yet running.
  virtual void FailQueued(const absl::Status& status) = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_ENGINE_H_
