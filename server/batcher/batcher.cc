#include "server/batcher/batcher.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "server/batcher/batcher_impl.h"

namespace nibble::server {

// Runs batches until there is none to run, or until one that completed within Run has ended a
// request: those are answered first.
void Batcher::Impl::Dispatch(Visit& visit) {
  const size_t ended_before = visit.ended.size();
  FormedBatch formed;
  while (visit.ended.size() == ended_before && FormBatch(visit, formed)) {
    RunBatch(visit, std::exchange(formed, {}));
  }
}

void Batcher::Impl::Deliver(Visit& visit) {
  for (Requests::node_type& node : std::exchange(visit.ended, {})) {
    const Request& request = node.mapped();
    if (request.rejected.has_value() && observer_ != nullptr) {
      observer_->OnRejected(*request.rejected);
    }
    request.work.done(request.outcome);
    node = {};
    pending_.fetch_sub(1);
  }
}

bool Batcher::Impl::FormBatch(Visit& visit, FormedBatch& formed) {
  std::unique_lock lock(mutex_);
  if (closed_) return false;
  bool taken = false;
  if (!queue_.empty()) {
    const Clock::TimePoint now = clock_.Now();
    DropExpired(now, visit.ended);
    const bool idle = MayStartBatch(now);
    taken = idle && TakeBatch(now, formed);
    if (taken) {
      ++running_;
      running_time_ += formed.expected;
    }
    for (Request* request : formed.requests) {
      ++request->pieces_in_flight;
      if (request->outcome.batches++ == 0) {
        request->outcome.queue_us = MicrosecondsBetween(request->submitted, now);
      }
    }
    ArmTimer(/*hold_oldest=*/idle && !taken);
  }
  ReportQueueRows(lock);
  return taken;
}

int64_t Batcher::Impl::ContendedRows(Clock::TimePoint now) {
  return options_.contended_batch.count() > 0 ? contention_.LightRequestRows(now) : 0;
}

bool Batcher::Impl::MayStartBatch(Clock::TimePoint now) {
  if (running_ == 0) return true;
  if (running_ >= options_.batches_in_flight) return false;
  // A light caller's next request waits for all that run.
  return running_time_ < options_.contended_batch || ContendedRows(now) == 0;
}

bool Batcher::Impl::TakeBatch(Clock::TimePoint now, FormedBatch& formed) {
  const Clock::TimePoint ripe =
      accepting_ ? now - options_.max_queue_delay : Clock::TimePoint::max();
  Lane* lane = queue_.Next(ripe);
  if (lane == nullptr) return false;
  int64_t most_rows = options_.max_batch_rows;
  const int64_t light_rows = ContendedRows(now);
  // One that starts before its time because it is full is taken whole: what is left would be held.
  const bool early = queue_.Oldest()->submitted > ripe;
  if (light_rows > 0 && !early) {
    // As many rows of each caller as the lightest one asks for, and more where that does not take
    // too long.
    const auto callers = static_cast<int64_t>(lane->flows.size());
    const int64_t base_rows =
        std::min(std::max<int64_t>(1, most_rows / callers), light_rows) * callers;
    most_rows =
        std::min(most_rows, times_.RowsWithin(lane->key, base_rows, options_.contended_batch, now));
  }
  queue_.Take(*lane, most_rows, formed.batch, formed.requests);
  formed.at = now;
  formed.expected =
      times_.Expected(formed.batch.key, formed.batch.rows, options_.contended_batch, now);
  return true;
}

void Batcher::Impl::RunBatch(Visit& visit, FormedBatch formed) {
  if (observer_ != nullptr) {
    observer_->OnBatchFormed(formed.requests.front()->work.op, formed.batch.rows);
    for (size_t i = 0; i < formed.requests.size(); ++i) {
      if (formed.batch.pieces[i].row_begin != 0) continue;
      const Request& request = *formed.requests[i];
      observer_->OnQueued(request.work.op, request.outcome.queue_us);
    }
  }
  visit.in_run = true;
  RunningBatch running{formed.batch.key, formed.batch.rows, formed.at, formed.expected,
                       std::move(formed.requests)};
  executor_.Run(std::move(formed.batch),
                [self = shared_from_this(), running = std::move(running)](
                    const BatchResult& result) { self->OnBatchDone(running, result); });
  visit.in_run = false;
}

void Batcher::Impl::OnBatchDone(const RunningBatch& batch, const BatchResult& result) {
  Enter([&](Ended& ended) {
    --running_;
    running_time_ -= batch.expected;
    if (result.status.ok()) times_.Record(batch.key, batch.rows, batch.begin, clock_.Now());
    for (Request* request : batch.requests) {
      Outcome& outcome = request->outcome;
      outcome.compute_us += result.compute_us;
      if (batch.rows > outcome.batch_rows) {
        outcome.batch_rows = batch.rows;
        outcome.kernel = result.kernel;
      }
      if (!result.status.ok()) {
        if (outcome.status.ok()) outcome.status = result.status;
        if (request->flow != nullptr) queue_.Remove(*request);
      }
      if (--request->pieces_in_flight == 0 && request->flow == nullptr) {
        ended.push_back(requests_.extract(request->ticket));
      }
    }
  });
}

void Batcher::Impl::OnTimer(uint64_t generation) {
  Enter([&](Ended&) {
    if (generation == timer_generation_) timer_at_ = Clock::TimePoint::max();
  });
}

bool Batcher::Impl::MakeRoom(const Work& work, Clock::TimePoint now, Ended& ended) {
  while (!queue_.HasRoomFor(work)) {
    const size_t callers = queue_.CallersWith(work.caller);
    const double share = 1.0 / static_cast<double>(callers);
    if (queue_.ShareWith(work) > share) return false;
    Request* newest = queue_.NewestOverShare(share);
    if (newest == nullptr) return false;
    const absl::Status evicted = absl::ResourceExhaustedError(
        fmt::format("the queue is full and this caller holds more than its share of it, one of {} "
                    "callers; try again later",
                    callers));
    DropQueuedRows(*newest, evicted, RejectReason::kQueueFull, now, ended);
  }
  return true;
}

absl::Status Batcher::Impl::Admit(const Work& work, Clock::TimePoint now,
                                  std::optional<RejectReason>& reason, Ended& ended) {
  if (work.rows <= 0) {
    return absl::InvalidArgumentError(
        fmt::format("rows: expected at least 1; received {}", work.rows));
  }
  if (!accepting_) {
    reason = RejectReason::kDraining;
    return absl::UnavailableError("the server is draining and takes no new requests");
  }
  if (work.deadline <= now) {
    reason = RejectReason::kExpired;
    return absl::DeadlineExceededError("the deadline had passed when the request arrived");
  }
  reason = RejectReason::kQueueFull;
  if (work.rows > options_.max_queue_rows || work.bytes > options_.max_queue_bytes) {
    return absl::ResourceExhaustedError(fmt::format(
        "the request is larger than the queue: it has {} rows and {} bytes, the queue holds at "
        "most {} rows and {} bytes; send fewer rows a request",
        work.rows, work.bytes, options_.max_queue_rows, options_.max_queue_bytes));
  }
  if (!MakeRoom(work, now, ended)) {
    return absl::ResourceExhaustedError(fmt::format(
        "the queue is full: the request has {} rows and {} bytes, {} of {} rows and {} of {} "
        "bytes are taken; try again later",
        work.rows, work.bytes, queue_.rows(), options_.max_queue_rows, queue_.bytes(),
        options_.max_queue_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<Batcher::Ticket> Batcher::Impl::Submit(Work work) {
  absl::Status admitted;
  std::optional<RejectReason> rejected;
  Ticket ticket = 0;
  Enter([&](Ended& ended) {
    const Clock::TimePoint now = clock_.Now();
    admitted = Admit(work, now, rejected, ended);
    if (!admitted.ok()) return;
    ticket = next_ticket_++;
    Request& request = requests_[ticket];
    request.work = std::move(work);
    request.ticket = ticket;
    request.submitted = now;
    pending_.fetch_add(1);
    queue_.Push(request);
    // Callers who come one after the other are in no one's way.
    if (requests_.size() > 1) contention_.Note(request.work.caller, request.work.rows, now);
  });
  if (admitted.ok()) return ticket;
  if (rejected.has_value() && observer_ != nullptr) observer_->OnRejected(*rejected);
  return admitted;
}

void Batcher::Impl::Cancel(Ticket ticket) {
  Enter([&](Ended& ended) {
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) return;
    Request& request = found->second;
    const absl::Status cancelled = absl::CancelledError("the caller cancelled the request");
    if (request.flow != nullptr) {
      DropQueuedRows(request, cancelled, RejectReason::kCancelled, clock_.Now(), ended);
    } else if (request.outcome.status.ok()) {
      request.outcome.status = cancelled;
    }
  });
}

void Batcher::Impl::CancelSoon(Ticket ticket) {
  std::lock_guard lock(mutex_);
  if (closed_ || !requests_.contains(ticket)) return;
  clock_.RunAt(clock_.Now(), [weak = weak_from_this(), ticket] {
    if (const std::shared_ptr<Impl> self = weak.lock()) self->Cancel(ticket);
  });
}

void Batcher::Impl::StopAccepting() {
  Enter([&](Ended&) { accepting_ = false; });
}

void Batcher::Impl::FailQueued(const absl::Status& status) {
  Enter([&](Ended& ended) {
    const Clock::TimePoint now = clock_.Now();
    const absl::Status failure =
        status.ok() ? absl::UnavailableError("the queue was emptied") : status;
    while (Request* oldest = queue_.Oldest()) {
      DropQueuedRows(*oldest, failure, RejectReason::kDraining, now, ended);
    }
  });
}

void Batcher::Impl::DropQueuedRows(Request& request, const absl::Status& status,
                                   RejectReason reason, Clock::TimePoint now, Ended& ended) {
  queue_.Remove(request);
  request.outcome.status = status;
  request.rejected = reason;
  if (request.outcome.batches == 0) {
    request.outcome.queue_us = MicrosecondsBetween(request.submitted, now);
  }
  if (request.pieces_in_flight == 0) ended.push_back(requests_.extract(request.ticket));
}

void Batcher::Impl::DropExpired(Clock::TimePoint now, Ended& ended) {
  for (Request* request = queue_.EarliestDeadline();
       request != nullptr && request->work.deadline <= now; request = queue_.EarliestDeadline()) {
    const absl::Status expired = absl::DeadlineExceededError(fmt::format(
        "the deadline passed in the queue after {:.0f} us, with {} of {} rows started",
        MicrosecondsBetween(request->submitted, now), request->next_row, request->work.rows));
    DropQueuedRows(*request, expired, RejectReason::kExpired, now, ended);
  }
}

void Batcher::Impl::ArmTimer(bool hold_oldest) {
  Clock::TimePoint when = Clock::TimePoint::max();
  if (const Request* first = queue_.EarliestDeadline()) when = first->work.deadline;
  if (const Request* oldest = queue_.Oldest(); oldest != nullptr && hold_oldest) {
    when = std::min(when, oldest->submitted + options_.max_queue_delay);
  }
  if (when >= timer_at_) return;
  if (timer_at_ != Clock::TimePoint::max()) clock_.Cancel(timer_id_);
  timer_at_ = when;
  timer_id_ = clock_.RunAt(when, [weak = weak_from_this(), generation = ++timer_generation_] {
    if (const std::shared_ptr<Impl> self = weak.lock()) self->OnTimer(generation);
  });
}

void Batcher::Impl::ReportQueueRows(std::unique_lock<std::mutex>& lock) {
  if (observer_ == nullptr || reporting_rows_) return;
  reporting_rows_ = true;
  while (reported_rows_ != queue_.rows()) {
    reported_rows_ = queue_.rows();
    const int64_t rows = reported_rows_;
    lock.unlock();
    observer_->OnQueueRows(rows);
    lock.lock();
  }
  reporting_rows_ = false;
}

void Batcher::Impl::Close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  if (timer_at_ != Clock::TimePoint::max()) clock_.Cancel(timer_id_);
  const int own = VisitOfThisThread() != nullptr ? 1 : 0;
  visitor_left_.wait(lock, [&] { return visitors_ == own; });
}

namespace {

Batcher::Options Usable(Batcher::Options options) {
  options.max_batch_rows = std::max<int64_t>(options.max_batch_rows, 1);
  options.batches_in_flight = std::max(options.batches_in_flight, 1);
  return options;
}

}  // namespace

Batcher::Batcher(const Options& options, Clock& clock, BatchExecutor& executor,
                 BatcherObserver* observer)
    : impl_(std::make_shared<Impl>(Usable(options), clock, executor, observer)) {}
Batcher::~Batcher() { impl_->Close(); }

absl::StatusOr<Batcher::Ticket> Batcher::Submit(Work work) {
  return impl_->Submit(std::move(work));
}
void Batcher::Cancel(Ticket ticket) { impl_->Cancel(ticket); }
void Batcher::CancelSoon(Ticket ticket) { impl_->CancelSoon(ticket); }
void Batcher::StopAccepting() { impl_->StopAccepting(); }
void Batcher::FailQueued(const absl::Status& status) { impl_->FailQueued(status); }
int64_t Batcher::queued_rows() const { return impl_->queued_rows(); }
int64_t Batcher::pending() const { return impl_->pending(); }

}  // namespace nibble::server
