#include "kernels/cpu/thread_pool.h"

#include <vector>

#include "gtest/gtest.h"

namespace nibble::cpu {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    auto pool = ThreadPool::Create(GetParam());
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = std::move(pool).value();
  }
  std::unique_ptr<ThreadPool> pool_;
};

TEST_P(ThreadPoolTest, RunsEveryTaskOnceInEveryLoop) {
  EXPECT_EQ(pool_->threads(), GetParam());
  for (int loop = 0; loop < 200; ++loop) {
    const int64_t tasks = loop % 7;
    std::vector<int> runs(static_cast<size_t>(tasks), 0);
    std::vector<int> worker_of(static_cast<size_t>(tasks), -1);
    pool_->ParallelFor(tasks, [&](int64_t task, int worker) {
      ++runs[static_cast<size_t>(task)];
      worker_of[static_cast<size_t>(task)] = worker;
    });
    for (size_t task = 0; task < runs.size(); ++task) {
      EXPECT_EQ(runs[task], 1);
      EXPECT_GE(worker_of[task], 0);
      EXPECT_LT(worker_of[task], GetParam());
    }
  }
}

TEST_P(ThreadPoolTest, RangesCoverEveryItemOnce) {
  for (const int64_t count : {0, 1, 9, 10, 11}) {
    for (const int64_t grain : {1, 3, 10, 100}) {
      std::vector<int> visits(static_cast<size_t>(count), 0);
      pool_->ParallelRanges(count, grain, [&](int64_t begin, int64_t end, int) {
        EXPECT_EQ(begin % grain, 0);
        EXPECT_LE(end - begin, grain);
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      EXPECT_EQ(visits, std::vector<int>(static_cast<size_t>(count), 1)) << count << " " << grain;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 5));

}  // namespace
}  // namespace nibble::cpu
