#include "server/executor/copy_crew.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace nibble::server {
namespace {

// How often each of `count` parts is copied. Progress grows to `count`, on this thread, and is
// never ahead of the copies.
std::vector<int> Copies(CopyCrew& crew, size_t count) {
  std::vector<int> copies(count);
  size_t copied = 0;
  const std::thread::id caller = std::this_thread::get_id();
  crew.Run(
      count, [&](size_t part) { ++copies[part]; },
      [&](size_t below) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        EXPECT_GT(below, copied);
        EXPECT_LE(below, count);
        for (; copied < below && copied < count; ++copied) EXPECT_EQ(copies[copied], 1) << copied;
      });
  EXPECT_EQ(copied, count);
  return copies;
}

class CopyCrewTest : public ::testing::TestWithParam<int> {};

TEST_P(CopyCrewTest, CopiesEveryPartOnce) {
  CopyCrew crew(GetParam());
  for (size_t count : {0u, 1u, 2u, 3u, 1000u}) {
    for (int call = 0; call < 100; ++call) {
      ASSERT_EQ(Copies(crew, count), std::vector<int>(count, 1));
    }
  }
}

TEST(CopyCrew, WithoutHelpersSaysAfterEveryPart) {
  CopyCrew crew(0);
  std::vector<size_t> calls;
  crew.Run(
      3, [](size_t) {}, [&](size_t below) { calls.push_back(below); });
  EXPECT_EQ(calls, (std::vector<size_t>{1, 2, 3}));
}

TEST_P(CopyCrewTest, ServesCallersAtOnce) {
  CopyCrew crew(GetParam());
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int call = 0; call < 200; ++call) {
        EXPECT_EQ(Copies(crew, 50), std::vector<int>(50, 1));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

INSTANTIATE_TEST_SUITE_P(Helpers, CopyCrewTest, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace nibble::server
