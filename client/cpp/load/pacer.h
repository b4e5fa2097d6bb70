// Keeps the time of an open loop.
#ifndef NIBBLE_CLIENT_LOAD_PACER_H_
#define NIBBLE_CLIENT_LOAD_PACER_H_

#include <cstdint>
#include <functional>

#include "client/cpp/load/distribution.h"
#include "client/cpp/load/exchange.h"

namespace nibble::load {

// Nanoseconds of a clock that never goes back.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() = 0;
  // Returns at `when_ns` or a little later; at once when that has passed.
  virtual void SleepUntil(int64_t when_ns) = 0;
};

// The machine's monotonic clock, sleeping as precisely as it can.
class MonotonicClock final : public Clock {
 public:
  int64_t NowNs() override;
  void SleepUntil(int64_t when_ns) override;
};

struct PacerActions {
  // Whether the request that is due at this time is still wanted; the first no ends the loop.
  std::function<bool(int64_t intended_ns)> wanted;
  // No later request is wanted; asked while nothing is due.
  std::function<bool()> over;
  // A free exchange, waiting for one where too many are in flight; null: there will be none.
  std::function<Exchange*()> acquire;
  std::function<void(Exchange&)> start;
};

struct PaceResult {
  // A request was sent later than give_up_lag_ns, and the rest not at all.
  bool given_up = false;
  // Wanted requests that `acquire` had no exchange for.
  int64_t unsent = 0;
};

// Starts a request at `start_ns` plus each time of the schedule, and says with each when it was
// due. A request that could not be sent in time, because the clock, the connections or the bound on
// requests in flight held it up, keeps the time at which it was due: whatever stalls shows in its
// latency, and none is left out. Ends early once a request is sent more than `give_up_lag_ns` late
// (0: never).
PaceResult Pace(ArrivalSchedule& schedule, int64_t start_ns, int64_t give_up_lag_ns, Clock& clock,
                const PacerActions& actions);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_PACER_H_
