// A request's life:
//
//             Submit --refused--> (a status, no done)
//               |
//               v
//   +------- waiting ---------- its last rows batched -----------+
//   |           |                                                |
//   |      a first part batched (more than max_batch_rows)       |
//   |           v                                                v
//   |       splitting --------- its last rows batched -------> in flight --+
//   |           |                                                          |
//   |      expiry, Cancel, FailQueued, a failed piece:                     |
//   |      the rows still queued are dropped, the error is kept            |
//   |           v                                                          |
//   |       stopping ------------------------------------------------------+
//   |                                                                      | last piece done
//   +-- expiry, Cancel, FailQueued ----------> ended <---------------------+
//
// The first error that a request meets is its answer. A Cancel in flight counts as one; a deadline
// that passes when no row is queued any more does not.
//
// Threads: every entry (Submit, Cancel, FailQueued, a batch's done, a timer) changes the state
// under one mutex, and then, without it, forms and runs what batches it can and calls the done of
// what has ended. An entry from within a callback of the same thread leaves the calls to the visit
// around it, so that the stack does not grow with the number of batches.
#ifndef NIBBLE_SERVER_BATCHER_BATCHER_IMPL_H_
#define NIBBLE_SERVER_BATCHER_BATCHER_IMPL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "server/batcher/batch_times.h"
#include "server/batcher/batcher.h"
#include "server/batcher/contention.h"
#include "server/batcher/request_queue.h"

namespace nibble::server {

class Batcher::Impl : public std::enable_shared_from_this<Batcher::Impl> {
 public:
  Impl(const Options& options, Clock& clock, BatchExecutor& executor, BatcherObserver* observer)
      : options_(options),
        clock_(clock),
        executor_(executor),
        observer_(observer),
        queue_({options.max_batch_rows, options.max_queue_rows, options.max_queue_bytes}) {}

  void Close();
  absl::StatusOr<Ticket> Submit(Work work);
  void Cancel(Ticket ticket);
  void CancelSoon(Ticket ticket);
  void StopAccepting();
  void FailQueued(const absl::Status& status);
  int64_t queued_rows() const {
    std::lock_guard lock(mutex_);
    return queue_.rows();
  }
  int64_t pending() const { return pending_.load(); }

 private:
  using Requests = std::unordered_map<Ticket, Request>;
  // Requests taken out of the table, their done still to be called.
  using Ended = std::vector<Requests::node_type>;

  struct FormedBatch {
    Batch batch;
    std::vector<Request*> requests;  // of batch.pieces, index for index
    Clock::TimePoint at;
    Clock::Duration expected{};  // at most contended_batch
  };
  struct RunningBatch {
    BatchKey key;
    int64_t rows = 0;
    Clock::TimePoint begin;
    Clock::Duration expected;
    std::vector<Request*> requests;
  };

  // What a thread has to do before it leaves this batcher.
  struct Visit {
    Impl* impl;
    Visit* outer;  // the thread's visits to other batchers around this one
    bool in_run = false;
    Ended ended = {};
  };

  template <typename Change>
  void Enter(Change change);
  static Visit*& ThisThread() {
    static thread_local Visit* innermost = nullptr;
    return innermost;
  }
  Visit* VisitOfThisThread() {
    Visit* visit = ThisThread();
    while (visit != nullptr && visit->impl != this) visit = visit->outer;
    return visit;
  }

  // Without the lock.
  void Dispatch(Visit& visit);
  void Deliver(Visit& visit);
  bool FormBatch(Visit& visit, FormedBatch& formed);
  void RunBatch(Visit& visit, FormedBatch formed);
  void OnBatchDone(const RunningBatch& batch, const BatchResult& result);
  void OnTimer(uint64_t generation);

  // With the lock.
  absl::Status Admit(const Work& work, Clock::TimePoint now, std::optional<RejectReason>& reason,
                     Ended& ended);
  // Ends queued requests of callers over their share, if that makes room for `work` of one who is
  // not.
  bool MakeRoom(const Work& work, Clock::TimePoint now, Ended& ended);
  void DropQueuedRows(Request& request, const absl::Status& status, RejectReason reason,
                      Clock::TimePoint now, Ended& ended);
  void DropExpired(Clock::TimePoint now, Ended& ended);
  // The rows of a light caller's request while another asks for much more, else 0.
  int64_t ContendedRows(Clock::TimePoint now);
  bool MayStartBatch(Clock::TimePoint now);
  // Moves the rows of the next batch out of the queue; false where none is ripe.
  bool TakeBatch(Clock::TimePoint now, FormedBatch& formed);
  void ArmTimer(bool hold_oldest);
  void ReportQueueRows(std::unique_lock<std::mutex>& lock);

  const Options options_;
  Clock& clock_;
  BatchExecutor& executor_;
  BatcherObserver* const observer_;
  std::atomic<int64_t> pending_{0};

  mutable std::mutex mutex_;
  bool accepting_ = true;
  Ticket next_ticket_ = 1;
  Requests requests_;  // every request accepted and not ended
  RequestQueue queue_;
  Contention contention_;
  BatchTimes times_;
  int running_ = 0;  // batches in flight
  Clock::Duration running_time_{};  // that they should take together

  // One timer for the earliest deadline and the end of a hold. It is only ever moved forward: one
  // that fires too early finds nothing to do and is set again, which costs less than following
  // every request that comes and goes.
  Clock::TimePoint timer_at_ = Clock::TimePoint::max();
  Clock::TimerId timer_id_ = 0;
  uint64_t timer_generation_ = 0;

  // The thread that reports keeps reporting until the last value is out, so that the observer never
  // ends on an old one.
  bool reporting_rows_ = false;
  int64_t reported_rows_ = 0;

  bool closed_ = false;
  int visitors_ = 0;
  std::condition_variable visitor_left_;
};

template <typename Change>
void Batcher::Impl::Enter(Change change) {
  if (Visit* around = VisitOfThisThread(); around != nullptr) {
    {
      std::lock_guard lock(mutex_);
      change(around->ended);
    }
    // From within Run the loop around it goes on right away. From within a done it may take long.
    if (!around->in_run) Dispatch(*around);
    return;
  }
  Visit visit{.impl = this, .outer = ThisThread()};
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    ++visitors_;
    change(visit.ended);
  }
  ThisThread() = &visit;
  for (Dispatch(visit); !visit.ended.empty(); Dispatch(visit)) Deliver(visit);
  ThisThread() = visit.outer;
  std::lock_guard lock(mutex_);
  --visitors_;
  if (closed_) visitor_left_.notify_all();
}

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_BATCHER_BATCHER_IMPL_H_
