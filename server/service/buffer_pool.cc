#include "server/service/buffer_pool.h"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <new>
#include <vector>

#include "fmt/format.h"

namespace nibble::server {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr int kSmallestBits = 12;
constexpr uint64_t kSmallestBytes = uint64_t{1} << kSmallestBits;
constexpr int kLargestBits = 32;
constexpr uint64_t kLargestBytes = uint64_t{1} << kLargestBits;
// Four sizes from one power of two to the next.
constexpr uint64_t kSteps = 4;
constexpr size_t kSizes = (kLargestBits - kSmallestBits) * kSteps + 1;

struct Size {
  size_t index = 0;
  uint64_t bytes = 0;
};

// The smallest size that holds `bytes`, at most kLargestBytes.
Size SizeFor(uint64_t bytes) {
  if (bytes <= kSmallestBytes) return {0, kSmallestBytes};
  const auto below_bits = static_cast<int>(std::bit_width(bytes - 1)) - 1;
  const uint64_t below = uint64_t{1} << below_bits;
  const uint64_t step = below / kSteps;
  const uint64_t steps = (bytes - below + step - 1) / step;
  return {static_cast<size_t>(below_bits - kSmallestBits) * kSteps + steps, below + steps * step};
}

}  // namespace

// Before the bytes of a block.
struct alignas(64) BufferPool::Block {
  std::shared_ptr<Core> core;
  Size size;

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
  static Block* Create(std::shared_ptr<Core> core, Size size) {
    void* memory = ::operator new(sizeof(Block) + size.bytes, kAlignment, std::nothrow);
    return memory == nullptr ? nullptr : new (memory) Block{std::move(core), size};
  }
  static void Destroy(Block* block) {
    block->~Block();
    ::operator delete(block, kAlignment);
  }
};

// Shared with the blocks that are out. Idle blocks do not own it.
class BufferPool::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(Options options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

  Block* Take(Size size) {
    {
      std::lock_guard lock(mutex_);
      ++takes_;
      ArmTimer();
      Idle& idle = idle_[size.index];
      if (!idle.blocks.empty()) {
        Block* block = idle.blocks.back();
        idle.blocks.pop_back();
        idle.fewest = std::min(idle.fewest, idle.blocks.size());
        idle_bytes_ -= size.bytes;
        block->core = shared_from_this();
        return block;
      }
    }
    return Block::Create(shared_from_this(), size);
  }

  void Return(Block* block) {
    {
      std::lock_guard lock(mutex_);
      if (!closed_ && block->size.bytes <= options_.max_idle_bytes - idle_bytes_) {
        block->core.reset();  // the caller holds another
        idle_[block->size.index].blocks.push_back(block);
        idle_bytes_ += block->size.bytes;
        ArmTimer();
        return;
      }
    }
    Block::Destroy(block);
  }

  void Close() {
    std::vector<Block*> dropped;
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      if (armed_) clock_.Cancel(timer_);
      for (Idle& idle : idle_) Drop(idle, idle.blocks.size(), dropped);
    }
    for (Block* block : dropped) Block::Destroy(block);
  }

  uint64_t idle_bytes() const {
    std::lock_guard lock(mutex_);
    return idle_bytes_;
  }

 private:
  struct Idle {
    std::vector<Block*> blocks;  // the one used last at the back
    size_t fewest = 0;           // blocks since the timer last ran: as many were not needed
  };

  void ArmTimer() {
    if (armed_ || closed_) return;
    armed_ = true;
    timer_ = clock_.RunAt(clock_.Now() + options_.idle_time, [weak = weak_from_this()] {
      if (const std::shared_ptr<Core> self = weak.lock()) self->OnTimer();
    });
  }

  void OnTimer() {
    std::vector<Block*> dropped;
    bool is_idle = false;
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      armed_ = false;
      is_idle = takes_ == 0;
      for (Idle& idle : idle_) {
        Drop(idle, is_idle ? idle.blocks.size() : idle.fewest, dropped);
        idle.fewest = idle.blocks.size();
      }
      takes_ = 0;
      if (!is_idle) ArmTimer();
    }
    for (Block* block : dropped) Block::Destroy(block);
    if (is_idle && options_.on_idle) options_.on_idle();
  }

  // Takes the `count` blocks that were not used for longest out of `idle`.
  void Drop(Idle& idle, size_t count, std::vector<Block*>& dropped) {
    const auto end = idle.blocks.begin() + static_cast<std::ptrdiff_t>(count);
    for (auto block = idle.blocks.begin(); block != end; ++block) {
      idle_bytes_ -= (*block)->size.bytes;
      dropped.push_back(*block);
    }
    idle.blocks.erase(idle.blocks.begin(), end);
  }

  const Options options_;
  Clock& clock_;
  mutable std::mutex mutex_;
  std::array<Idle, kSizes> idle_;
  uint64_t idle_bytes_ = 0;
  uint64_t takes_ = 0;  // since the timer last ran
  bool armed_ = false;
  Clock::TimerId timer_ = 0;
  bool closed_ = false;
};

std::byte* PooledBuffer::data() const {
  return block_ == nullptr ? nullptr : static_cast<BufferPool::Block*>(block_)->data();
}

void PooledBuffer::Return(void* released) {
  auto* block = static_cast<BufferPool::Block*>(released);
  const std::shared_ptr<BufferPool::Core> core = block->core;
  core->Return(block);
}

BufferPool::BufferPool(Options options, Clock& clock)
    : core_(std::make_shared<Core>(std::move(options), clock)) {}
BufferPool::~BufferPool() { core_->Close(); }

absl::StatusOr<PooledBuffer> BufferPool::Take(uint64_t bytes) {
  Block* block = bytes > kLargestBytes ? nullptr : core_->Take(SizeFor(bytes));
  if (block == nullptr) {
    return absl::ResourceExhaustedError(fmt::format("no memory for a result of {} bytes", bytes));
  }
  return PooledBuffer(block);
}

uint64_t BufferPool::idle_bytes() const { return core_->idle_bytes(); }

}  // namespace nibble::server
