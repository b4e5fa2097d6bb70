// Layers on their way from a checkpoint into the store: several threads load and upload them at
// once, as many as fit the host memory that a load may take.
#ifndef NIBBLE_SERVER_LOADER_LAYER_QUEUE_H_
#define NIBBLE_SERVER_LOADER_LAYER_QUEUE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace nibble::server {

class LayerQueue {
 public:
  // Does the whole work of one layer, on a thread of the queue. Not called again after an error.
  using Work = std::function<absl::Status(size_t layer)>;

  // Layers are admitted while the sum of their costs is at most `budget_bytes`; one alone always
  // is. At least one thread; std::system_error where the system refuses the first.
  LayerQueue(int threads, int64_t budget_bytes, Work work);
  // Waits for the layers in work; those that wait are dropped.
  ~LayerQueue();

  struct State {
    int layers_done = 0;
    int64_t bytes_done = 0;
    absl::Status status;  // the first error
  };
  // Hands over a layer of `bytes`, which takes `cost_bytes` of host memory. Waits until it is
  // admitted or an error has ended the queue.
  State Push(size_t layer, int64_t bytes, int64_t cost_bytes);
  // Waits until all is done that was pushed, or more of it than when it was called, or until an
  // error.
  State WaitForProgress();
  State state() const;

 private:
  struct Item {
    size_t layer = 0;
    int64_t bytes = 0;
    int64_t cost_bytes = 0;
  };
  void Run();
  absl::Status WorkOn(size_t layer) const;

  const int64_t budget_bytes_;
  const Work work_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // of everybody: an item came, went, or the end has come
  std::deque<Item> waiting_;
  int in_work_ = 0;
  int64_t cost_bytes_ = 0;  // of what waits and of what is in work
  bool closed_ = false;
  State state_;
  std::vector<std::thread> threads_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_LOADER_LAYER_QUEUE_H_
