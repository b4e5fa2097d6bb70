#include "server/batcher/request_queue.h"

#include <algorithm>

namespace nibble::server {
namespace {

Batcher::Ticket OldestOf(const Lane& lane) { return lane.by_age.begin()->first; }

}  // namespace

void RequestQueue::Push(Request& request) {
  Lane& lane = lanes_[request.work.key];
  if (lane.flows.empty()) lane.key = request.work.key;
  Flow& flow = lane.flows[request.work.caller];
  request.flow = &flow;
  request.previous = flow.tail;
  if (flow.tail != nullptr) {
    flow.tail->next = &request;
    flow.tail = &request;
  } else {
    flow.lane = &lane;
    flow.head = flow.tail = &request;
    // A caller that was away has not saved up any rows.
    flow.virtual_rows = lane.virtual_rows;
    Index(flow, request.work.caller);
  }
  lane.rows += request.work.rows;
  rows_ += request.work.rows;
  bytes_ += request.work.bytes;
  Caller& caller = callers_[request.work.caller];
  caller.rows += request.work.rows;
  caller.bytes += request.work.bytes;
  request.caller_older = caller.newest;
  if (caller.newest != nullptr) {
    caller.newest->caller_newer = &request;
  } else {
    caller.oldest = &request;
    caller.virtual_rows = virtual_rows_;
    callers_by_turn_.emplace(TurnOf(caller), &caller);
  }
  caller.newest = &request;
  if (request.work.deadline != Clock::TimePoint::max()) {
    deadlines_.emplace(std::pair(request.work.deadline, request.ticket), &request);
  }
  Reindex(lane, OldestOf(lane));
}

void RequestQueue::Remove(Request& request) {
  Flow& flow = *request.flow;
  Lane& lane = *flow.lane;
  const uint64_t caller = request.work.caller;
  const Batcher::Ticket old_oldest = OldestOf(lane);
  Unindex(flow);
  Unlink(request);
  Index(flow, caller);
  Reindex(lane, old_oldest);
}

Request* RequestQueue::Oldest() const {
  return by_age_.empty() ? nullptr : by_age_.begin()->second->by_age.begin()->second->head;
}

Request* RequestQueue::EarliestDeadline() const {
  return deadlines_.empty() ? nullptr : deadlines_.begin()->second;
}

Lane* RequestQueue::Next(Clock::TimePoint ripe) const {
  if (empty()) return nullptr;
  const Request* turn = callers_by_turn_.begin()->second->oldest;
  if (turn->submitted <= ripe) return turn->flow->lane;
  if (Oldest()->submitted <= ripe) return by_age_.begin()->second;
  return full_by_age_.empty() ? nullptr : full_by_age_.begin()->second;
}

void RequestQueue::Take(Lane& lane, int64_t most_rows, Batch& batch,
                        std::vector<Request*>& pieces_of) {
  const Batcher::Ticket old_oldest = OldestOf(lane);
  batch.key = lane.key;
  while (!lane.by_turn.empty()) {
    Flow& flow = *lane.by_turn.begin()->second;
    Request& request = *flow.head;
    const uint64_t caller = request.work.caller;
    const int64_t left = request.work.rows - request.next_row;
    int64_t taken = std::min(left, most_rows - batch.rows);
    // One that has been split goes on being split, however many rows a batch may have by now.
    const bool may_split = request.work.rows > most_rows || request.next_row > 0;
    if (taken == 0 || (taken < left && !may_split)) break;
    if (may_split && lane.flows.size() > 1) {
      // Not all of the batch to one caller while others wait.
      const auto callers = static_cast<int64_t>(lane.flows.size());
      taken = std::min(taken, std::max<int64_t>(1, most_rows / callers));
    }
    const auto found =
        may_split ? std::find(pieces_of.begin(), pieces_of.end(), &request) : pieces_of.end();
    if (found == pieces_of.end()) {
      batch.pieces.push_back({request.work.payload, request.next_row, taken});
      pieces_of.push_back(&request);
    } else {
      batch.pieces[static_cast<size_t>(found - pieces_of.begin())].rows += taken;
    }
    batch.rows += taken;
    Unindex(flow);
    lane.virtual_rows = flow.virtual_rows;
    flow.virtual_rows += taken;
    Charge(callers_.find(caller)->second, taken);
    HandOut(request, taken);
    if (taken == left) Unlink(request);
    Index(flow, caller);
  }
  Reindex(lane, old_oldest);
}

void RequestQueue::Charge(Caller& caller, int64_t rows) {
  auto turn = callers_by_turn_.extract(TurnOf(caller));
  virtual_rows_ = std::max(virtual_rows_, caller.virtual_rows);
  caller.virtual_rows += rows;
  turn.key() = TurnOf(caller);
  callers_by_turn_.insert(std::move(turn));
}

void RequestQueue::HandOut(Request& request, int64_t rows) {
  request.next_row += rows;
  request.flow->lane->rows -= rows;
  rows_ -= rows;
  callers_.find(request.work.caller)->second.rows -= rows;
}

void RequestQueue::Unlink(Request& request) {
  HandOut(request, request.work.rows - request.next_row);
  Flow& flow = *request.flow;
  (request.previous != nullptr ? request.previous->next : flow.head) = request.next;
  (request.next != nullptr ? request.next->previous : flow.tail) = request.previous;
  request.flow = nullptr;
  request.previous = request.next = nullptr;
  bytes_ -= request.work.bytes;

  const auto caller = callers_.find(request.work.caller);
  caller->second.bytes -= request.work.bytes;
  if (caller->second.oldest == &request) {
    callers_by_turn_.erase(TurnOf(caller->second));
    caller->second.oldest = request.caller_newer;
    if (request.caller_newer != nullptr) {
      callers_by_turn_.emplace(TurnOf(caller->second), &caller->second);
    }
  }
  if (request.caller_older != nullptr) request.caller_older->caller_newer = request.caller_newer;
  (request.caller_newer != nullptr ? request.caller_newer->caller_older : caller->second.newest) =
      request.caller_older;
  request.caller_older = request.caller_newer = nullptr;
  if (caller->second.newest == nullptr) callers_.erase(caller);

  if (request.work.deadline != Clock::TimePoint::max()) {
    deadlines_.erase(std::pair(request.work.deadline, request.ticket));
  }
}

void RequestQueue::Unindex(Flow& flow) {
  flow.lane->by_age.erase(flow.head->ticket);
  flow.lane->by_turn.erase(std::pair(flow.virtual_rows, flow.head->ticket));
}

void RequestQueue::Index(Flow& flow, uint64_t caller) {
  if (flow.head == nullptr) {
    flow.lane->flows.erase(caller);
    return;
  }
  flow.lane->by_age.emplace(flow.head->ticket, &flow);
  flow.lane->by_turn.emplace(std::pair(flow.virtual_rows, flow.head->ticket), &flow);
}

void RequestQueue::Reindex(Lane& lane, Batcher::Ticket old_oldest) {
  const bool oldest_changed = lane.by_age.empty() || OldestOf(lane) != old_oldest;
  if (oldest_changed) by_age_.erase(old_oldest);
  if (oldest_changed || lane.rows < bounds_.max_batch_rows) full_by_age_.erase(old_oldest);
  if (lane.by_age.empty()) {
    lanes_.erase(BatchKey(lane.key));  // a copy: erase must not read the key it destroys
    return;
  }
  by_age_.try_emplace(OldestOf(lane), &lane);
  if (lane.rows >= bounds_.max_batch_rows) full_by_age_.try_emplace(OldestOf(lane), &lane);
}

size_t RequestQueue::CallersWith(uint64_t caller) const {
  return callers_.size() + (callers_.contains(caller) ? 0 : 1);
}

double RequestQueue::Share(int64_t rows, uint64_t bytes) const {
  return std::max(static_cast<double>(rows) / static_cast<double>(bounds_.max_rows),
                  static_cast<double>(bytes) / static_cast<double>(bounds_.max_bytes));
}

double RequestQueue::ShareWith(const Work& more) const {
  const auto found = callers_.find(more.caller);
  if (found == callers_.end()) return Share(more.rows, more.bytes);
  return Share(found->second.rows + more.rows, found->second.bytes + more.bytes);
}

Request* RequestQueue::NewestOverShare(double share) const {
  const Caller* most = nullptr;
  for (const auto& [id, caller] : callers_) {
    const double held = Share(caller.rows, caller.bytes);
    const bool newer = most != nullptr && caller.newest->ticket > most->newest->ticket;
    if (held > share || (held == share && newer)) {
      share = held;
      most = &caller;
    }
  }
  if (most == nullptr) return nullptr;
  Request* request = most->newest;
  while (request != nullptr && request->next_row > 0) request = request->caller_older;
  return request;
}

}  // namespace nibble::server
