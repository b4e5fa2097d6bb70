#include "server/executor/graph_cache.h"

#include <gtest/gtest.h>

#include <memory>

namespace nibble::server {
namespace {

constexpr Choice kChoice{"gemv", 8, 32, 128, 1};

// Counts the graphs alive.
struct TestGraph : Graph {
  explicit TestGraph(int& counted) : alive(counted) { ++alive; }
  ~TestGraph() override { --alive; }
  int& alive;
};

class GraphCacheTest : public ::testing::Test {
 protected:
  static GraphCache::Key KeyOf(uint64_t version, int64_t rows = 1) { return {{{version}}, rows}; }
  std::unique_ptr<Graph> NewGraph() { return std::make_unique<TestGraph>(alive_); }
  // Uses a key until it is recorded.
  void Record(GraphCache& cache, const GraphCache::Key& key) {
    while (!cache.Use(key, kChoice).record) {
    }
    cache.Put(NewGraph());
  }

  int alive_ = 0;
};

TEST_F(GraphCacheTest, RecordsAtTheGivenUse) {
  GraphCache cache(4, 3);
  for (const bool record : {false, false, true, true}) {
    const GraphCache::Plan plan = cache.Use(KeyOf(1), kChoice);
    EXPECT_EQ(plan.graph, nullptr);
    EXPECT_EQ(plan.record, record);
  }
  cache.Put(NewGraph());
  EXPECT_NE(cache.Use(KeyOf(1), kChoice).graph, nullptr);
  EXPECT_EQ(cache.Use(KeyOf(1, 2), kChoice).graph, nullptr);
  EXPECT_EQ(cache.Use(KeyOf(2), kChoice).graph, nullptr);
}

TEST_F(GraphCacheTest, ForgetsTheLeastRecentlyUsed) {
  GraphCache cache(2, 1);
  Record(cache, KeyOf(1));
  Record(cache, KeyOf(2));
  EXPECT_NE(cache.Use(KeyOf(1), kChoice).graph, nullptr);
  Record(cache, KeyOf(3));
  EXPECT_EQ(alive_, 2);
  EXPECT_NE(cache.Use(KeyOf(1), kChoice).graph, nullptr);
  EXPECT_EQ(cache.Use(KeyOf(2), kChoice).graph, nullptr);
  EXPECT_EQ(cache.Use(KeyOf(3), kChoice).graph, nullptr);  // 2 has taken its place
}

TEST_F(GraphCacheTest, AnotherChoiceIsRecordedAnew) {
  GraphCache cache(2, 2);
  Record(cache, KeyOf(1));
  Choice other = kChoice;
  other.tile_n = 64;
  EXPECT_FALSE(cache.Use(KeyOf(1), other).record);
  EXPECT_EQ(alive_, 0);
  EXPECT_TRUE(cache.Use(KeyOf(1), other).record);
  cache.Put(NewGraph());
  EXPECT_NE(cache.Use(KeyOf(1), other).graph, nullptr);
}

TEST_F(GraphCacheTest, DoesNotAskAgainForWhatCannotBeRecorded) {
  GraphCache cache(2, 1);
  EXPECT_TRUE(cache.Use(KeyOf(1), kChoice).record);
  cache.Refuse();
  EXPECT_FALSE(cache.Use(KeyOf(1), kChoice).record);
  EXPECT_TRUE(cache.Use(KeyOf(2), kChoice).record);
}

TEST_F(GraphCacheTest, ClearDropsGraphsAndCounts) {
  GraphCache cache(2, 2);
  Record(cache, KeyOf(1));
  cache.Clear();
  EXPECT_EQ(alive_, 0);
  EXPECT_FALSE(cache.Use(KeyOf(1), kChoice).record);
}

TEST_F(GraphCacheTest, GraphsEndWithTheCache) {
  {
    GraphCache cache(2, 1);
    Record(cache, KeyOf(1));
  }
  EXPECT_EQ(alive_, 0);
}

}  // namespace
}  // namespace nibble::server
