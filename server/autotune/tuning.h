// The measuring of one key: which rows, which kernels, how often, and when to stop.
#ifndef NIBBLE_SERVER_AUTOTUNE_TUNING_H_
#define NIBBLE_SERVER_AUTOTUNE_TUNING_H_

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "nibble/backend.h"
#include "nibble/measured.h"
#include "server/autotune/served_weights.h"
#include "server/clock/clock.h"

namespace nibble::server {

// Keeps measurements and requests apart.
class QuietGate {
 public:
  virtual ~QuietGate() = default;
  // Returns when nothing else has run on the device for a while. False: measuring has to end.
  virtual bool Await() = 0;
  // Whether anything else has run there since, or waits to.
  virtual bool Disturbed() = 0;
};

struct TuningLimits {
  int64_t max_rows = 1024;
  std::chrono::milliseconds budget{2000};  // of measuring; waiting for the device is not counted
  uint64_t memory_bytes = uint64_t{1} << 30;
  // What a request that comes during a measurement may have to wait. A launch that is likely to
  // take longer is not measured, nor are more rows than its.
  std::chrono::milliseconds longest_launch{50};
};

enum class TuningEnd : uint8_t {
  kComplete,
  kBudget,
  kTooLong,     // more rows take too long a launch, or too much memory
  kWeightGone,  // unloaded
  kStopped,     // by the gate
  kFault,       // of the device
};
std::string_view TuningEndName(TuningEnd end);

struct Tuning {
  std::vector<MeasuredRows> rows;  // by increasing m; those that were measured to the end
  TuningEnd end = TuningEnd::kComplete;
  Clock::Duration spent{0};
  absl::Status fault;  // kFault
};

// Times every candidate for M = 1, 2, 4, ... max_rows, with the candidates taking turns a few times
// and the least of its times for each: what disturbs a launch makes it longer, and on a CPU that
// others use too half of them may be. Then, between two M with different winners, for the M in the
// middle, three times over. A measurement that a request came into is made again. No weight is held
// from one measurement to the next.
Tuning Tune(Device& device, const MatmulKey& key, ServedWeights& weights, QuietGate& gate,
            Clock& clock, const TuningLimits& limits);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_AUTOTUNE_TUNING_H_
