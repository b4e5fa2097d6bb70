// Memory of results: blocks that are used again while the server is busy, because pages that have
// just been mapped cost more than the copy into them, and given back when it is idle.
#ifndef NIBBLE_SERVER_SERVICE_BUFFER_POOL_H_
#define NIBBLE_SERVER_SERVICE_BUFFER_POOL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/clock/clock.h"

namespace nibble::server {

// A block of a pool, or none. Its bytes are whatever was in them before. It may outlive the pool.
class PooledBuffer {
 public:
  PooledBuffer() = default;
  PooledBuffer(PooledBuffer&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  PooledBuffer& operator=(PooledBuffer&& other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~PooledBuffer() {
    if (block_ != nullptr) Return(block_);
  }

  // 64-byte aligned.
  std::byte* data() const;

  // Gives the block up to whoever calls Return with the handle, once, from any thread.
  void* Release() && { return std::exchange(block_, nullptr); }
  static void Return(void* released);

 private:
  friend class BufferPool;
  explicit PooledBuffer(void* block) : block_(block) {}
  void* block_ = nullptr;
};

// Thread safe.
class BufferPool {
 public:
  struct Options {
    // Most bytes kept for later; what comes back beyond is freed.
    uint64_t max_idle_bytes = uint64_t{256} << 20;
    // A block that has not been used for one to two of these is freed.
    std::chrono::milliseconds idle_time{2000};
    // Called, on a thread of the clock, when no block has been taken for an idle_time.
    std::function<void()> on_idle;
  };
  // `clock` outlives the pool.
  BufferPool(Options options, Clock& clock);
  ~BufferPool();

  // kResourceExhausted where there is no memory.
  absl::StatusOr<PooledBuffer> Take(uint64_t bytes);
  // Bytes kept for later.
  uint64_t idle_bytes() const;

 private:
  friend class PooledBuffer;
  class Core;
  struct Block;
  std::shared_ptr<Core> core_;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_SERVICE_BUFFER_POOL_H_
