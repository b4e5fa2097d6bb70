// Time and timers, injected so that everything that waits can be tested without waiting.
#ifndef NIBBLE_SERVER_CLOCK_CLOCK_H_
#define NIBBLE_SERVER_CLOCK_CLOCK_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace nibble::server {

class Clock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  using TimerId = uint64_t;  // never 0

  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // Runs `fn` once, at `when` or soon after, on the clock's thread, with no lock of the clock held.
  virtual TimerId RunAt(TimePoint when, std::function<void()> fn) = 0;
  // True when the timer had not started and now never will. False: it has run, is running, or never
  // existed.
  virtual bool Cancel(TimerId id) = 0;
};

// The steady clock with one timer thread. Destroying it stops the thread; timers left are dropped.
std::unique_ptr<Clock> CreateRealClock();

inline double MicrosecondsBetween(Clock::TimePoint begin, Clock::TimePoint end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_CLOCK_CLOCK_H_
