// Whether one of several callers asks for much more than another, judged by the rows that each has
// sent lately. A plain data structure: no lock, no clock.
#ifndef NIBBLE_SERVER_BATCHER_CONTENTION_H_
#define NIBBLE_SERVER_BATCHER_CONTENTION_H_

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "server/clock/clock.h"

namespace nibble::server {

class Contention {
 public:
  // A request of `rows` (> 0) came.
  void Note(uint64_t caller, int64_t rows, Clock::TimePoint now);

  // The rows of the lightest caller's largest request, where another caller lately sent more than
  // twice as many rows as it did; else 0.
  int64_t LightRequestRows(Clock::TimePoint now);

 private:
  struct Load {
    int64_t request_rows = 0;  // of the largest request
    int64_t rows = 0;          // of all requests; 0: not seen

    void Add(const Load& other);
  };
  struct Caller {
    Load current;              // in this window
    Load previous;             // in the one before
    Clock::TimePoint begin{};  // of `current`: the window's, or the first request after a pause
  };

  void Turn(Clock::TimePoint now);
  // Whether the caller asks for rows more than twice as slowly as the one who asks for most.
  bool IsLight(const Caller& caller, Clock::TimePoint now) const;
  // Looks at the caller who has just come once it has had time to show what it asks for.
  void JudgeNewcomer(Clock::TimePoint now);

  std::unordered_map<uint64_t, Caller> callers_;
  Clock::TimePoint window_begin_ = Clock::TimePoint::min();
  int64_t most_rows_ = 0;          // of a caller in both windows
  int64_t most_current_rows_ = 0;  // in this one
  // A caller who came in this window and is not judged yet. It counts as light meanwhile.
  std::optional<uint64_t> newcomer_;
  // What the last window with several callers showed, or a new caller in this one, and when.
  int64_t light_request_rows_ = 0;
  Clock::TimePoint seen_ = Clock::TimePoint::min();
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_BATCHER_CONTENTION_H_
