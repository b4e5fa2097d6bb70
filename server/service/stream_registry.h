// The streams that are open, so that a drain can end them.
#ifndef NIBBLE_SERVER_SERVICE_STREAM_REGISTRY_H_
#define NIBBLE_SERVER_SERVICE_STREAM_REGISTRY_H_

#include <mutex>
#include <set>

namespace nibble::server {

class DrainableStream {
 public:
  virtual ~DrainableStream() = default;
  // Called with the registry's mutex held: must not add or remove a stream before it returns.
  virtual void Drain() = 0;
};

class StreamRegistry {
 public:
  // A stream that is added after DrainAll is drained at once.
  void Add(DrainableStream* stream) {
    std::lock_guard lock(mutex_);
    streams_.insert(stream);
    if (draining_) stream->Drain();
  }
  // Once this returns the registry does not touch the stream.
  void Remove(DrainableStream* stream) {
    std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  void DrainAll() {
    std::lock_guard lock(mutex_);
    draining_ = true;
    for (DrainableStream* stream : streams_) stream->Drain();
  }

 private:
  std::mutex mutex_;
  std::set<DrainableStream*> streams_;
  bool draining_ = false;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_STREAM_REGISTRY_H_
