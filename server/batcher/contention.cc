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
  Load& load = entry->second.current;
  load.Add({rows, rows});
  most_rows_ = std::max(most_rows_, load.rows + entry->second.previous.rows);
  // The batch in progress may be long; the next one should not be.
  if (is_new && most_rows_ / kMuchMore > rows) {
    light_request_rows_ = rows;
    seen_ = now;
  }
}

int64_t Contention::LightRequestRows(Clock::TimePoint now) {
  if (!callers_.empty() && now - window_begin_ >= kWindow) Turn(now);
  if (light_request_rows_ > 0 && now - seen_ >= kMemory) light_request_rows_ = 0;
  return light_request_rows_;
}

void Contention::Turn(Clock::TimePoint now) {
  if (callers_.size() > 1) {
    Load light;
    for (const auto& [id, caller] : callers_) {
      Load load = caller.current;
      load.Add(caller.previous);
      if (light.rows == 0 || load.rows < light.rows) light = load;
    }
    light_request_rows_ = most_rows_ / kMuchMore > light.rows ? light.request_rows : 0;
    seen_ = window_begin_ + kWindow;
  }
  most_rows_ = 0;
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
