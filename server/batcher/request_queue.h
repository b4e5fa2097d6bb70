// What waits in a batcher: for each key the requests of every caller, the keys ordered by the age
// of their oldest request, and the deadlines of everything in them. A plain data structure: no
// lock, no clock, no callback.
//
// Callers are served by start-time fair queueing (Goyal, Vin, Cheng 1996) over rows: each has a
// virtual time that advances by the rows it was given, and the one furthest behind is next; over
// all keys, to choose the key, and within a key, to choose the rows. A caller's own requests keep
// their order; with one caller that is all there is.
//
// Every operation is O(log n) in the number of keys, callers or requests, or better, except
// NewestOverShare.
#ifndef NIBBLE_SERVER_BATCHER_REQUEST_QUEUE_H_
#define NIBBLE_SERVER_BATCHER_REQUEST_QUEUE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "server/batcher/batcher.h"
#include "server/clock/clock.h"

namespace nibble::server {

struct Flow;

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
  Flow* flow = nullptr;
  Request* previous = nullptr;
  Request* next = nullptr;
  // Among all requests of its caller, by age.
  Request* caller_older = nullptr;
  Request* caller_newer = nullptr;
};

struct Lane;

// The requests of one caller for one key, oldest first; never empty between calls.
struct Flow {
  Lane* lane = nullptr;
  Request* head = nullptr;
  Request* tail = nullptr;
  int64_t virtual_rows = 0;
};

// The requests of one key; never empty between calls.
struct Lane {
  BatchKey key;
  int64_t rows = 0;
  int64_t virtual_rows = 0;  // of the flow served last
  std::unordered_map<uint64_t, Flow> flows;
  std::map<Batcher::Ticket, Flow*> by_age;  // by the ticket of the head
  std::map<std::pair<int64_t, Batcher::Ticket>, Flow*> by_turn;
};

class RequestQueue {
 public:
  struct Bounds {
    int64_t max_batch_rows = 1;
    int64_t max_rows = 1;
    uint64_t max_bytes = 1;
  };
  explicit RequestQueue(const Bounds& bounds) : bounds_(bounds) {}

  // Rows not yet handed out.
  int64_t rows() const { return rows_; }
  // Bytes of the requests that still have such rows.
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return lanes_.empty(); }
  // Whether such a request keeps within the bounds.
  bool HasRoomFor(const Work& work) const {
    return work.rows <= bounds_.max_rows - rows_ && work.bytes <= bounds_.max_bytes - bytes_;
  }

  // `request` must be younger than all before it, and stay where it is until it leaves the queue.
  void Push(Request& request);
  // Drops the rows of `request` that are still here.
  void Remove(Request& request);

  // The oldest request; null when empty.
  Request* Oldest() const;
  // The request whose deadline comes first; null when none has one.
  Request* EarliestDeadline() const;

  // The key that is next: of the oldest request of the caller whose turn it is, where that was
  // submitted by `ripe`; else of the oldest request, where that was; else the oldest among the keys
  // that can fill a batch. Null where there is none.
  Lane* Next(Clock::TimePoint ripe) const;
  // Takes the rows of a batch, at most `most_rows` (> 0): a request with more rows is split.
  // pieces_of[i] is the request of batch.pieces[i]; a request has one piece.
  void Take(Lane& lane, int64_t most_rows, Batch& batch, std::vector<Request*>& pieces_of);

  // Callers with requests here, and `caller`.
  size_t CallersWith(uint64_t caller) const;
  // What part of the bounds the caller would hold with `more` added, in rows or bytes, whichever is
  // larger.
  double ShareWith(const Work& more) const;
  // The newest request without a row handed out of the caller that holds most, where that is more
  // than `share`; else null. Of callers that hold the same, the one with the newest request.
  Request* NewestOverShare(double share) const;

 private:
  using ByAge = std::map<Batcher::Ticket, Lane*>;
  struct Caller {
    int64_t rows = 0;
    uint64_t bytes = 0;
    int64_t virtual_rows = 0;
    Request* oldest = nullptr;
    Request* newest = nullptr;
  };

  double Share(int64_t rows, uint64_t bytes) const;
  static std::pair<int64_t, Batcher::Ticket> TurnOf(const Caller& caller) {
    return {caller.virtual_rows, caller.oldest->ticket};
  }
  // Out of the orders of its lane before a flow's head or virtual time changes, and back, or gone
  // when it is empty.
  void Unindex(Flow& flow);
  void Index(Flow& flow, uint64_t caller);
  void Unlink(Request& request);
  void Charge(Caller& caller, int64_t rows);
  void HandOut(Request& request, int64_t rows);
  // Brings the two orders of lanes up to date after a lane's oldest request or rows changed; drops
  // it when empty.
  void Reindex(Lane& lane, Batcher::Ticket old_oldest);

  const Bounds bounds_;
  int64_t rows_ = 0;
  uint64_t bytes_ = 0;
  std::unordered_map<BatchKey, Lane, absl::Hash<BatchKey>> lanes_;
  ByAge by_age_;              // every lane, by its oldest request's ticket
  ByAge full_by_age_;         // the lanes that hold max_batch_rows or more
  int64_t virtual_rows_ = 0;  // of the caller served last
  std::unordered_map<uint64_t, Caller> callers_;
  std::map<std::pair<int64_t, Batcher::Ticket>, Caller*> callers_by_turn_;
  std::map<std::pair<Clock::TimePoint, Batcher::Ticket>, Request*> deadlines_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_BATCHER_REQUEST_QUEUE_H_
