#include "server/batcher/contention.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace nibble::server {
namespace {

// Longer than most batches, so that callers who wait for their answers are seen in each.
constexpr Clock::Duration kWindow = std::chrono::seconds(1);
// A caller who comes once in a while finds the device as it left it.
constexpr Clock::Duration kMemory = std::chrono::seconds(10);
// What a caller who has just come needs to show how much it asks for.
constexpr Clock::Duration kFirstLook = std::chrono::milliseconds(100);
// Callers who differ less gain from sharing large batches.
constexpr int64_t kMuchMore = 2;

}  // namespace

void Contention::Load::Add(const Load& other) {
  request_rows = std::max(request_rows, other.request_rows);
  rows += other.rows;
}

void Contention::Note(uint64_t caller, int64_t rows, Clock::TimePoint now) {
  if (window_begin_ == Clock::TimePoint::min()) window_begin_ = now;
  if (now - window_begin_ >= kWindow) Turn(now);
  const auto [entry, is_new] = callers_.try_emplace(caller);
  Caller& noted = entry->second;
  if (noted.current.rows == 0) noted.begin = noted.previous.rows > 0 ? window_begin_ : now;
  noted.current.Add({rows, rows});
  most_current_rows_ = std::max(most_current_rows_, noted.current.rows);
  most_rows_ = std::max(most_rows_, noted.current.rows + noted.previous.rows);
  // The batch in progress may be long; the next one should not be.
  if (is_new && most_rows_ / kMuchMore > rows) {
    if (light_request_rows_ == 0) newcomer_ = caller;
    light_request_rows_ = rows;
    seen_ = now;
  }
}

int64_t Contention::LightRequestRows(Clock::TimePoint now) {
  if (!callers_.empty() && now - window_begin_ >= kWindow) Turn(now);
  JudgeNewcomer(now);
  if (light_request_rows_ > 0 && now - seen_ >= kMemory) light_request_rows_ = 0;
  return light_request_rows_;
}

bool Contention::IsLight(const Caller& caller, Clock::TimePoint now) const {
  // One who has left, or came in the middle of a window, asked for as much while it was there.
  if (caller.previous.rows > 0) {
    return most_rows_ / kMuchMore > caller.current.rows + caller.previous.rows;
  }
  const double present = MicrosecondsBetween(caller.begin, now);
  const double window = MicrosecondsBetween(window_begin_, now);
  return static_cast<double>(most_current_rows_) * present >
         static_cast<double>(kMuchMore * caller.current.rows) * window;
}

void Contention::JudgeNewcomer(Clock::TimePoint now) {
  if (!newcomer_.has_value()) return;
  const auto found = callers_.find(*newcomer_);
  if (found != callers_.end()) {
    if (now - found->second.begin < kFirstLook) return;
    if (!IsLight(found->second, now)) light_request_rows_ = 0;
  }
  newcomer_.reset();
}

void Contention::Turn(Clock::TimePoint now) {
  Load light;
  int judged = 0;
  for (const auto& [id, caller] : callers_) {
    // Who did not come in this window may have left; who has just come may come more often.
    if (caller.current.rows == 0) continue;
    if (caller.previous.rows == 0 && now - caller.begin < kFirstLook) continue;
    ++judged;
    if (!IsLight(caller, now)) continue;
    Load load = caller.current;
    load.Add(caller.previous);
    if (light.rows == 0 || load.rows < light.rows) light = load;
  }
  if (judged > 1) {
    light_request_rows_ = light.request_rows;
    seen_ = window_begin_ + kWindow;
  }
  newcomer_.reset();
  most_rows_ = 0;
  most_current_rows_ = 0;
  const bool pause = now - window_begin_ >= 2 * kWindow;
  for (auto it = callers_.begin(); it != callers_.end();) {
    it->second.previous = pause ? Load{} : it->second.current;
    it->second.current = {};
    most_rows_ = std::max(most_rows_, it->second.previous.rows);
    it = it->second.previous.rows == 0 ? callers_.erase(it) : std::next(it);
  }
  window_begin_ = now;
}

}  // namespace nibble::server
