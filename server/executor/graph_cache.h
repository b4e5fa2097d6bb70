// Which batches of a lane are replayed as graphs, and which graphs it keeps.
#ifndef NIBBLE_SERVER_EXECUTOR_GRAPH_CACHE_H_
#define NIBBLE_SERVER_EXECUTOR_GRAPH_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>

#include "nibble/backend.h"
#include "server/batcher/batcher.h"

namespace nibble::server {

// A graph names the addresses of its weight and of the lane's buffers, and keeps none of them
// alive. A weight's version is part of the batch key and never comes back, so the graph of a weight
// that is gone is never asked for, and leaves as the least recently used. When a buffer moves, the
// owner calls Clear.
//
// Recording costs as much as several launches: what runs once or twice is never recorded. Not
// thread safe.
class GraphCache {
 public:
  struct Key {
    BatchKey work;
    int64_t rows = 0;
    bool operator==(const Key&) const = default;
  };

  // What to do with a batch.
  struct Plan {
    Graph* graph = nullptr;  // replay this
    bool record = false;     // or record one, and Put it or Refuse it
  };

  // Keys are forgotten, with their graphs, from the `capacity`-th other one on. A graph is recorded
  // at the `record_at`-th use of its key.
  GraphCache(size_t capacity, int record_at) : capacity_(capacity), record_at_(record_at) {}

  // Counts a use of `key`. A graph that was recorded with another choice is dropped.
  Plan Use(const Key& key, const Choice& choice);
  // The graph of the key that Use has just been called for.
  void Put(std::unique_ptr<Graph> graph);
  // That key cannot be recorded: it will not be tried again while it is remembered.
  void Refuse();
  // Drops every graph and every count.
  void Clear();

 private:
  struct Entry {
    Key key;
    Choice choice;
    int uses = 0;
    bool refused = false;
    std::unique_ptr<Graph> graph;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };

  const size_t capacity_;
  const int record_at_;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<Key, std::list<Entry>::iterator, Hash> entry_of_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_GRAPH_CACHE_H_
