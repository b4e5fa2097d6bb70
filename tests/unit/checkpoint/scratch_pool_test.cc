#include "server/checkpoint/scratch_pool.h"

#include <cstring>

#include "gtest/gtest.h"

namespace nibble::checkpoint {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(ScratchPoolTest, BuffersAreDistinctAndHoldWhatIsAskedFor) {
  const auto pool = std::make_shared<ScratchPool>();
  for (size_t bytes : {size_t{1}, kMiB, 5 * kMiB}) {
    const auto a = pool->Take(bytes);
    const auto b = pool->Take(bytes);
    ASSERT_EQ(a.bytes.size(), bytes);
    std::memset(a.bytes.data(), 1, bytes);
    std::memset(b.bytes.data(), 2, bytes);
    EXPECT_EQ(a.bytes.front(), std::byte{1});
    EXPECT_EQ(a.bytes.back(), std::byte{1});
  }
}

TEST(ScratchPoolTest, ABufferGivenBackIsTakenAgain) {
  const auto pool = std::make_shared<ScratchPool>();
  const std::byte* first = nullptr;
  {
    const auto lease = pool->Take(5 * kMiB);
    first = lease.bytes.data();
  }
  const auto second = pool->Take(4 * kMiB);
  EXPECT_EQ(second.bytes.data(), first);
  EXPECT_NE(pool->Take(4 * kMiB).bytes.data(), first);  // it is in use
}

TEST(ScratchPoolTest, ASmallOneDoesNotTakeALargeOne) {
  const auto pool = std::make_shared<ScratchPool>();
  const std::byte* large = nullptr;
  {
    const auto lease = pool->Take(64 * kMiB);
    large = lease.bytes.data();
  }
  const auto small = pool->Take(kMiB);
  EXPECT_NE(small.bytes.data(), large);
}

TEST(ScratchPoolTest, ALeaseOutlivesThePool) {
  auto pool = std::make_shared<ScratchPool>();
  const auto lease = pool->Take(kMiB);
  pool.reset();
  std::memset(lease.bytes.data(), 7, lease.bytes.size());
  EXPECT_EQ(lease.bytes.back(), std::byte{7});
}

}  // namespace
}  // namespace nibble::checkpoint
