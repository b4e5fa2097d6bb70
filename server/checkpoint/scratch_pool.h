// Memory for decoded layers. A layer's buffers are handed to the next one, since fresh memory costs
// more than what is written to it.
#ifndef NIBBLE_SERVER_CHECKPOINT_SCRATCH_POOL_H_
#define NIBBLE_SERVER_CHECKPOINT_SCRATCH_POOL_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace nibble::checkpoint {

class ScratchPool : public std::enable_shared_from_this<ScratchPool> {
 public:
  // Freed buffers are kept up to this many bytes in all.
  static constexpr size_t kMaxKeptBytes = size_t{96} << 20;

  struct Lease {
    std::span<std::byte> bytes;              // not initialized
    std::shared_ptr<const void> keep_alive;  // gives them back
  };
  // Throws std::bad_alloc.
  Lease Take(size_t bytes);

 private:
  // Pages of their own, given back to the system when it ends.
  class Pages {
   public:
    explicit Pages(size_t bytes);
    ~Pages();
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    std::byte* data() const { return data_; }
    size_t size() const { return size_; }

   private:
    std::byte* data_ = nullptr;
    size_t size_ = 0;
  };

  // Pages in use, given back to a pool that is still there.
  struct Held;
  void GiveBack(std::unique_ptr<Pages> pages);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Pages>> kept_;
  size_t kept_bytes_ = 0;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_SCRATCH_POOL_H_
