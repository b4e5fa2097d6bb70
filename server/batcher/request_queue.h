// What waits in a batcher: one FIFO of requests per key, the keys ordered by the age of their
// heads, and the deadlines of everything in them. A plain data structure: no lock, no clock, no
// callback.
//
// Every operation is O(log n) in the number of keys or requests, or better.
#ifndef NIBBLE_SERVER_BATCHER_REQUEST_QUEUE_H_
#define NIBBLE_SERVER_BATCHER_REQUEST_QUEUE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "server/batcher/batcher.h"
#include "server/clock/clock.h"

namespace nibble::server {

struct Lane;

// An accepted request, from Submit until its done has returned.
struct Request {
  Work work;
  Batcher::Ticket ticket = 0;  // counts up: a smaller one is older
  Clock::TimePoint submitted;

  int64_t next_row = 0;  // rows before this one have been handed out
  int pieces_in_flight = 0;
  Outcome outcome;  // its status stays the first error that the request met
  // Set when rows of it were dropped from the queue.
  std::optional<RejectReason> rejected;

  // Its place in the queue; null once its last row was handed out or dropped.
  Lane* lane = nullptr;
  Request* previous = nullptr;
  Request* next = nullptr;
};

// The requests of one key, oldest first; never empty between calls.
struct Lane {
  BatchKey key;
  Request* head = nullptr;
  Request* tail = nullptr;
  int64_t rows = 0;
};

class RequestQueue {
 public:
  explicit RequestQueue(int64_t max_batch_rows) : max_batch_rows_(max_batch_rows) {}

  // Rows not yet handed out.
  int64_t rows() const { return rows_; }
  // Bytes of the requests that still have such rows.
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return lanes_.empty(); }

  // `request` must be younger than all before it, and stay where it is until it leaves the queue.
  void Push(Request& request);
  // Drops the rows of `request` that are still here.
  void Remove(Request& request);

  // The request of the oldest head; null when empty.
  Request* Oldest() const;
  // The request whose deadline comes first; null when none has one.
  Request* EarliestDeadline() const;

  // Takes the rows of the next batch: from the oldest head when `oldest_is_ripe`, else from the
  // oldest among the keys that can fill a batch. pieces_of[i] is the request of batch.pieces[i].
  // False, and nothing taken, where there is none.
  bool Take(bool oldest_is_ripe, Batch& batch, std::vector<Request*>& pieces_of);

 private:
  using ByAge = std::map<Batcher::Ticket, Lane*>;

  void Unlink(Request& request);
  // Brings the two orders of `lane` up to date after its head or rows changed; drops it when empty.
  void Reindex(Lane& lane, Batcher::Ticket old_head);

  const int64_t max_batch_rows_;
  int64_t rows_ = 0;
  uint64_t bytes_ = 0;
  std::unordered_map<BatchKey, Lane, absl::Hash<BatchKey>> lanes_;
  ByAge by_age_;       // every lane, by its head's ticket
  ByAge full_by_age_;  // the lanes that hold max_batch_rows or more
  std::map<std::pair<Clock::TimePoint, Batcher::Ticket>, Request*> deadlines_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_BATCHER_REQUEST_QUEUE_H_
