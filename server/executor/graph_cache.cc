#include "server/executor/graph_cache.h"

#include <utility>

#include "absl/hash/hash.h"

namespace nibble::server {

size_t GraphCache::Hash::operator()(const Key& key) const {
  return absl::HashOf(key.work, key.rows);
}

GraphCache::Plan GraphCache::Use(const Key& key, const Choice& choice) {
  const auto found = entry_of_.find(key);
  if (found == entry_of_.end()) {
    if (entries_.size() >= capacity_) {
      entry_of_.erase(entries_.back().key);
      entries_.pop_back();
    }
    entries_.push_front({.key = key, .choice = choice});
    entry_of_.emplace(key, entries_.begin());
  } else {
    entries_.splice(entries_.begin(), entries_, found->second);
  }
  Entry& entry = entries_.front();
  if (entry.choice != choice) {
    entry = Entry{.key = key, .choice = choice};
  }
  if (entry.graph != nullptr) return {.graph = entry.graph.get()};
  if (entry.refused) return {};
  return {.record = ++entry.uses >= record_at_};
}

void GraphCache::Put(std::unique_ptr<Graph> graph) { entries_.front().graph = std::move(graph); }

void GraphCache::Refuse() { entries_.front().refused = true; }

void GraphCache::Clear() {
  entry_of_.clear();
  entries_.clear();
}

}  // namespace nibble::server
