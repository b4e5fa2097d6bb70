#include "server/service/buffer_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"

namespace nibble::server {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class BufferPoolTest : public ::testing::Test {
 protected:
  void Start(uint64_t max_idle_bytes = 64 * kMiB) {
    pool_ = std::make_unique<BufferPool>(
        BufferPool::Options{max_idle_bytes, milliseconds(100), [this] { ++idle_calls_; }}, clock_);
  }
  PooledBuffer Take(uint64_t bytes) {
    auto taken = pool_->Take(bytes);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return *std::move(taken);
  }

  testing::FakeClock clock_;
  std::unique_ptr<BufferPool> pool_;
  int idle_calls_ = 0;
};

TEST_F(BufferPoolTest, BlocksAreUsedAgain) {
  Start();
  const std::byte* first = nullptr;
  {
    const PooledBuffer buffer = Take(3 * kMiB);
    first = buffer.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    EXPECT_EQ(pool_->idle_bytes(), 0u);
  }
  EXPECT_EQ(pool_->idle_bytes(), 3 * kMiB);
  // Any size of the same class will do.
  EXPECT_EQ(Take(3 * kMiB - 1000).data(), first);
  EXPECT_NE(Take(kMiB).data(), first);
}

TEST_F(BufferPoolTest, EverySizeIsHeldInFull) {
  Start();
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{4097},
                               uint64_t{5120}, uint64_t{5121}, uint64_t{8192}, 7 * kMiB / 4 + 1}) {
    const PooledBuffer buffer = Take(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    std::memset(buffer.data(), 1, bytes);  // for AddressSanitizer
  }
}

TEST_F(BufferPoolTest, MoreThanMemoryHoldsIsRefused) {
  Start();
  EXPECT_EQ(pool_->Take(UINT64_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool_->Take((uint64_t{1} << 32) + 1).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(BufferPoolTest, KeepsNoMoreThanItsLimit) {
  Start(2 * kMiB);
  {
    std::vector<PooledBuffer> buffers;
    for (int i = 0; i < 5; ++i) buffers.push_back(Take(kMiB));
  }
  EXPECT_EQ(pool_->idle_bytes(), 2 * kMiB);
}

TEST_F(BufferPoolTest, GivesAllBackWhenIdle) {
  Start();
  Take(kMiB);
  clock_.Advance(milliseconds(100));  // a block was taken in this time
  EXPECT_EQ(pool_->idle_bytes(), kMiB);
  EXPECT_EQ(idle_calls_, 0);
  clock_.Advance(milliseconds(100));
  EXPECT_EQ(pool_->idle_bytes(), 0u);
  EXPECT_EQ(idle_calls_, 1);
  // Idle it stays, without a timer.
  clock_.Advance(milliseconds(1000));
  EXPECT_EQ(idle_calls_, 1);
  Take(kMiB);
  clock_.Advance(milliseconds(200));
  EXPECT_EQ(idle_calls_, 2);
}

TEST_F(BufferPoolTest, GivesBackWhatABusyServerDoesNotNeed) {
  Start();
  {
    const PooledBuffer a = Take(kMiB);
    const PooledBuffer b = Take(kMiB);
    const PooledBuffer c = Take(kMiB);
  }
  clock_.Advance(milliseconds(100));
  for (int i = 0; i < 3; ++i) {
    Take(kMiB);
    clock_.Advance(milliseconds(100));
  }
  EXPECT_EQ(pool_->idle_bytes(), kMiB);
  EXPECT_EQ(idle_calls_, 0);
}

TEST_F(BufferPoolTest, BlocksOutliveThePool) {
  Start();
  PooledBuffer buffer = Take(kMiB);
  PooledBuffer other = Take(kMiB);
  pool_.reset();
  std::memset(buffer.data(), 1, kMiB);
  PooledBuffer::Return(std::move(buffer).Release());
  EXPECT_EQ(buffer.data(), nullptr);
}

TEST_F(BufferPoolTest, ThreadsShareIt) {
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 500; ++i) {
        const PooledBuffer buffer = Take(static_cast<uint64_t>(1 + (i * 7919) % 100000));
        std::memset(buffer.data(), t, 1000);
        EXPECT_EQ(buffer.data()[999], static_cast<std::byte>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace nibble::server
