// Gathers the rows of concurrent requests into batches for one device. It knows rows, bytes, time
// and keys; what the rows mean is the executor's affair.
//
//   Submit -> queue of its key -> batch (callers in turn, oldest first) -> executor -> done
//
// - While fewer than `batches_in_flight` batches run, whatever is queued starts at once: a lone
//   request never waits. Otherwise requests pile up and the next batch takes them.
// - max_queue_delay holds a batch that is not full until its oldest request is that old, and no
//   longer.
// - A batch holds one key and at most max_batch_rows rows. A request larger than that is split into
//   pieces and completes when all of them have; a smaller one is never split by it. Rows of one key
//   and caller leave in the order of their requests; a piece may share its batch with others.
// - Callers take turns by rows, for the next batch's key and for its rows, so that one with many
//   requests queued does not keep another waiting. While one asks for much more than another, a
//   batch has only the rows that take a bounded time (contended_batch; larger requests are split),
//   so that the one in progress does not keep another waiting long either. Times are learned from
//   the batches run.
// - Expired and cancelled requests leave the queue by a timer or at once, not when the device is
//   next idle, and are dropped again when a batch is formed. Their rows never reach the executor.
// - A piece that is already in flight is waited for: after `done` nobody touches the request's
//   memory. When a batch fails, every request in it gets its status, and rows of theirs that are
//   still queued are dropped.
// - The queue is bounded in rows and bytes over all keys; a request over the bound is refused,
//   unless its caller holds no more than an equal share: then the newest requests of the callers
//   that hold more make room for it, and end with kResourceExhausted.
//
// The batcher has no thread of its own. Callbacks run on the thread that called Submit, Cancel,
// FailQueued, a batch's done or a timer, never with a lock held, and may call back into the
// batcher; what they call for may then happen after they return, so they must not wait for it.
#ifndef NIBBLE_SERVER_BATCHER_BATCHER_H_
#define NIBBLE_SERVER_BATCHER_BATCHER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/clock/clock.h"

namespace nibble::server {

// Requests with equal keys may share a batch. The parts are chosen by the caller: weight version,
// op, dtypes and options.
struct BatchKey {
  std::array<uint64_t, 4> parts{};

  bool operator==(const BatchKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const BatchKey& key) {
    return H::combine(std::move(h), key.parts);
  }
};

// How a request ended.
struct Outcome {
  absl::Status status;
  std::string_view kernel;  // a string literal; empty when no batch ran
  int64_t batch_rows = 0;   // rows of the largest batch it took part in
  int batches = 0;          // batches it took part in
  double queue_us = 0;      // from Submit until its first batch was formed, or it ended unbatched
  double compute_us = 0;    // summed over its batches
};

// One request. `payload` is what the executor works on; it keeps alive what the rows are read from
// and written to, and the weight.
struct Work {
  BatchKey key;
  uint64_t caller = 0;  // who asks; callers share the device and the queue equally
  int64_t rows = 0;     // > 0
  uint64_t bytes = 0;   // of input and output together, for the queue's bound
  Clock::TimePoint deadline = Clock::TimePoint::max();
  int op = 0;  // passed to the observer
  std::shared_ptr<void> payload;
  std::function<void(const Outcome&)> done;  // called exactly once for an accepted request
};

// Rows [row_begin, row_begin + rows) of a request.
struct Piece {
  std::shared_ptr<void> payload;
  int64_t row_begin = 0;
  int64_t rows = 0;
};

struct Batch {
  BatchKey key;
  std::vector<Piece> pieces;  // at least one
  int64_t rows = 0;           // sum of the pieces' rows
};

struct BatchResult {
  absl::Status status;
  std::string_view kernel;  // a string literal
  double compute_us = 0;
};

class BatchExecutor {
 public:
  virtual ~BatchExecutor() = default;
  // Starts a batch and returns; calls `done` exactly once when nothing touches its memory any more,
  // from any thread (from within Run too).
  virtual void Run(Batch batch, std::function<void(const BatchResult&)> done) = 0;
};

enum class RejectReason : uint8_t { kQueueFull, kDraining, kExpired, kCancelled };

// Where the batcher reports to; called without locks.
class BatcherObserver {
 public:
  virtual ~BatcherObserver() = default;
  virtual void OnQueueRows(int64_t queued_rows) = 0;
  virtual void OnBatchFormed(int op, int64_t rows) = 0;
  // Once a request, when its first batch is formed.
  virtual void OnQueued(int op, double queue_us) = 0;
  // Once for every request that was refused, or whose rows were dropped from the queue (FailQueued
  // counts as kDraining).
  virtual void OnRejected(RejectReason reason) = 0;
};

class Batcher {
 public:
  struct Options {
    int64_t max_batch_rows = 1024;
    int64_t max_queue_rows = 131072;
    uint64_t max_queue_bytes = uint64_t{1} << 30;
    std::chrono::microseconds max_queue_delay{0};
    // While a caller shares the device with one who asks for much more, a batch is kept to about
    // this time, or 1.5 times that of one request like the lighter one's of each, where that is
    // longer; and no other one starts while those in flight should take as long together.
    // 0: max_batch_rows is the only bound.
    std::chrono::microseconds contended_batch{1000};
    int batches_in_flight = 1;
  };
  using Ticket = uint64_t;

  // `clock`, `executor` and `observer` outlive the batcher; observer may be null.
  Batcher(const Options& options, Clock& clock, BatchExecutor& executor, BatcherObserver* observer);
  // Everything submitted must have ended. Waits for other threads that are still inside a callback
  // or on their way out: afterwards nothing touches the clock, the executor or the observer.
  ~Batcher();

  // Takes `work`, or refuses it without calling its done; the message gives the numbers:
  //   kResourceExhausted  rows or bytes over the bound, in all or of this request alone
  //   kUnavailable        after StopAccepting
  //   kDeadlineExceeded   the deadline has already passed
  //   kInvalidArgument    rows <= 0
  // done may run before Submit returns.
  absl::StatusOr<Ticket> Submit(Work work);

  // Ends the request with kCancelled: at once when no piece of it is in flight, else when the
  // pieces in flight are done. Does nothing for a ticket that has ended.
  void Cancel(Ticket ticket);
  // The same, on the clock's thread: for a caller that must not run callbacks.
  void CancelSoon(Ticket ticket);

  // Refuses new work from now on; what was accepted goes on, and is no longer held for
  // max_queue_delay.
  void StopAccepting();
  // Ends everything that is queued and not in flight with `status`, an error. Rows of a request
  // that are queued while others of it are in flight are dropped too; it ends when those are done.
  void FailQueued(const absl::Status& status);

  int64_t queued_rows() const;
  // Requests accepted whose done has not yet returned.
  int64_t pending() const;

 private:
  class Impl;
  // Shared with the timers and completions that are under way.
  std::shared_ptr<Impl> impl_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_BATCHER_BATCHER_H_
