// Measures in the background of a server what its weights run best with.
//
//   a weight is Ready, or a batch has a key that nobody measured
//     -> wait until the device is quiet -> measure (tuning.h) -> TunedChoices -> the cache file
//
// One thread for all devices. It has the device only while nothing else does: it begins after a
// quiet time, looks again after every measurement (about 1 ms, or one launch), and gives way for as
// long as requests come or weights are loaded. A lost device is left alone.
#ifndef NIBBLE_SERVER_AUTOTUNE_AUTOTUNER_H_
#define NIBBLE_SERVER_AUTOTUNE_AUTOTUNER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nibble/backend.h"
#include "server/autotune/tuning.h"
#include "server/clock/clock.h"
#include "server/executor/engine.h"
#include "server/executor/tuned_choices.h"
#include "server/weight_store/weight_store.h"

namespace nibble::server {

struct AutotuneOptions {
  TuningLimits limits;
  // What a device must have been idle for before it is measured on.
  std::chrono::milliseconds quiet{50};
  std::string cache_file;  // empty: none
  std::string build;       // BuildId
};

// The choices of every device; devices that are alike share theirs.
std::vector<std::shared_ptr<TunedChoices>> MakeTunedChoices(const std::vector<Device*>& devices);

class Autotuner {
 public:
  using Activity = std::function<DeviceActivity(size_t device_index)>;

  // Reads the cache file and starts the thread. `activity` is called from it. `store`, its devices
  // and `clock` outlive this; `tuned` is one of each device.
  static std::unique_ptr<Autotuner> Start(const AutotuneOptions& options, const WeightStore& store,
                                          std::vector<std::shared_ptr<TunedChoices>> tuned,
                                          Activity activity, Clock& clock);
  virtual ~Autotuner() = default;

  // To be told by the store's observer. Thread safe.
  virtual void OnWeights(size_t device_index, WeightState state, int64_t count) = 0;
  // Ends the thread when the measurement under way is done. May be called again.
  virtual void Stop() = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_AUTOTUNE_AUTOTUNER_H_
