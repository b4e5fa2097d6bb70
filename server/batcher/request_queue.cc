#include "server/batcher/request_queue.h"

#include <algorithm>

namespace nibble::server {

void RequestQueue::Push(Request& request) {
  Lane& lane = lanes_[request.work.key];
  request.lane = &lane;
  request.previous = lane.tail;
  if (lane.tail == nullptr) {
    lane.key = request.work.key;
    lane.head = &request;
  } else {
    lane.tail->next = &request;
  }
  lane.tail = &request;
  lane.rows += request.work.rows;
  rows_ += request.work.rows;
  bytes_ += request.work.bytes;
  if (request.work.deadline != Clock::TimePoint::max()) {
    deadlines_.emplace(std::pair(request.work.deadline, request.ticket), &request);
  }
  Reindex(lane, lane.head->ticket);
}

void RequestQueue::Remove(Request& request) {
  Lane& lane = *request.lane;
  const Batcher::Ticket old_head = lane.head->ticket;
  Unlink(request);
  Reindex(lane, old_head);
}

Request* RequestQueue::Oldest() const {
  return by_age_.empty() ? nullptr : by_age_.begin()->second->head;
}

Request* RequestQueue::EarliestDeadline() const {
  return deadlines_.empty() ? nullptr : deadlines_.begin()->second;
}

bool RequestQueue::Take(bool oldest_is_ripe, Batch& batch, std::vector<Request*>& pieces_of) {
  const ByAge& candidates = oldest_is_ripe ? by_age_ : full_by_age_;
  if (candidates.empty()) return false;
  Lane& lane = *candidates.begin()->second;
  const Batcher::Ticket old_head = lane.head->ticket;
  batch.key = lane.key;
  while (lane.head != nullptr) {
    Request& request = *lane.head;
    const int64_t left = request.work.rows - request.next_row;
    const int64_t taken = std::min(left, max_batch_rows_ - batch.rows);
    const bool may_split = request.work.rows > max_batch_rows_;
    if (taken == 0 || (taken < left && !may_split)) break;
    batch.pieces.push_back({request.work.payload, request.next_row, taken});
    pieces_of.push_back(&request);
    batch.rows += taken;
    request.next_row += taken;
    lane.rows -= taken;
    rows_ -= taken;
    if (taken == left) Unlink(request);
  }
  Reindex(lane, old_head);
  return true;
}

void RequestQueue::Unlink(Request& request) {
  Lane& lane = *request.lane;
  (request.previous != nullptr ? request.previous->next : lane.head) = request.next;
  (request.next != nullptr ? request.next->previous : lane.tail) = request.previous;
  request.lane = nullptr;
  request.previous = request.next = nullptr;
  const int64_t left = request.work.rows - request.next_row;
  lane.rows -= left;
  rows_ -= left;
  bytes_ -= request.work.bytes;
  if (request.work.deadline != Clock::TimePoint::max()) {
    deadlines_.erase(std::pair(request.work.deadline, request.ticket));
  }
}

void RequestQueue::Reindex(Lane& lane, Batcher::Ticket old_head) {
  const bool head_changed = lane.head == nullptr || lane.head->ticket != old_head;
  if (head_changed) by_age_.erase(old_head);
  if (head_changed || lane.rows < max_batch_rows_) full_by_age_.erase(old_head);
  if (lane.head == nullptr) {
    lanes_.erase(BatchKey(lane.key));  // a copy: erase must not read the key it destroys
    return;
  }
  by_age_.try_emplace(lane.head->ticket, &lane);
  if (lane.rows >= max_batch_rows_) full_by_age_.try_emplace(lane.head->ticket, &lane);
}

}  // namespace nibble::server
