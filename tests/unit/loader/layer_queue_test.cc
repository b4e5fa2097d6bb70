#include "server/loader/layer_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <set>
#include <thread>

namespace nibble::server {
namespace {

// Layers that end when the test says so.
class Gate {
 public:
  absl::Status Enter(size_t layer) {
    std::unique_lock lock(mutex_);
    inside_.insert(layer);
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_.contains(layer); });
    inside_.erase(layer);
    return failing_ == static_cast<int>(layer) ? absl::DataLossError("cut") : absl::OkStatus();
  }
  void Open(size_t layer) {
    std::lock_guard lock(mutex_);
    open_.insert(layer);
    changed_.notify_all();
  }
  void WaitUntilInside(size_t layer) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_.contains(layer); });
  }
  bool IsInside(size_t layer) {
    std::lock_guard lock(mutex_);
    return inside_.contains(layer);
  }
  void Fail(int layer) { failing_ = layer; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<size_t> inside_;
  std::set<size_t> open_;
  std::atomic<int> failing_{-1};
};

TEST(LayerQueueTest, LayersAreInWorkTogether) {
  Gate gate;
  LayerQueue queue(2, 100, [&](size_t layer) { return gate.Enter(layer); });
  queue.Push(0, 10, 40);
  queue.Push(1, 20, 40);
  gate.WaitUntilInside(0);
  gate.WaitUntilInside(1);
  gate.Open(1);
  // WaitForProgress would wait for layer 0 where layer 1 is done before it is called.
  LayerQueue::State state = queue.state();
  while (state.layers_done < 1) {
    std::this_thread::yield();
    state = queue.state();
  }
  EXPECT_EQ(state.bytes_done, 20);
  gate.Open(0);
  while (state.layers_done < 2) state = queue.WaitForProgress();
  EXPECT_EQ(state.bytes_done, 30);
  EXPECT_TRUE(state.status.ok());
}

TEST(LayerQueueTest, WhatDoesNotFitBesideOthersWaits) {
  Gate gate;
  LayerQueue queue(2, 100, [&](size_t layer) { return gate.Enter(layer); });
  queue.Push(0, 1, 60);
  gate.WaitUntilInside(0);
  std::atomic<bool> admitted{false};
  std::thread pusher([&] {
    queue.Push(1, 1, 500);  // over the budget by itself: admitted once it is alone
    admitted = true;
  });
  gate.Open(0);
  gate.WaitUntilInside(1);
  EXPECT_FALSE(gate.IsInside(0));
  pusher.join();
  EXPECT_TRUE(admitted);
  gate.Open(1);
  while (queue.WaitForProgress().layers_done < 2) {
  }
}

TEST(LayerQueueTest, TheFirstErrorEndsIt) {
  Gate gate;
  gate.Fail(0);
  LayerQueue queue(1, 100, [&](size_t layer) { return gate.Enter(layer); });
  queue.Push(0, 1, 50);
  gate.WaitUntilInside(0);
  queue.Push(1, 1, 50);  // waits for a thread, and is dropped
  gate.Open(0);
  EXPECT_EQ(queue.WaitForProgress().status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(queue.Push(2, 1, 1000).status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(queue.state().layers_done, 0);
  EXPECT_FALSE(gate.IsInside(1));
}

TEST(LayerQueueTest, EndingDropsWhatWaitsAndWaitsForWhatIsInWork) {
  Gate gate;
  std::atomic<int> ended{0};
  {
    LayerQueue queue(1, 100, [&](size_t layer) {
      const absl::Status status = gate.Enter(layer);
      ++ended;
      return status;
    });
    queue.Push(0, 1, 10);
    queue.Push(1, 1, 10);
    gate.WaitUntilInside(0);
    gate.Open(0);
    gate.Open(1);
  }
  EXPECT_GE(ended, 1);
}

TEST(LayerQueueTest, MemoryThatRunsOutIsAnError) {
  LayerQueue queue(1, 100, [](size_t) -> absl::Status { throw std::bad_alloc(); });
  queue.Push(0, 1, 1);
  EXPECT_EQ(queue.WaitForProgress().status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(LayerQueueTest, ManyLayersOnManyThreads) {
  std::atomic<int64_t> sum{0};
  LayerQueue queue(4, 1000, [&](size_t layer) {
    sum += static_cast<int64_t>(layer);
    return absl::OkStatus();
  });
  for (size_t i = 0; i < 500; ++i) queue.Push(i, 2, static_cast<int64_t>(i));
  LayerQueue::State state = queue.state();
  while (state.layers_done < 500) state = queue.WaitForProgress();
  EXPECT_EQ(state.bytes_done, 1000);
  EXPECT_EQ(sum, 499 * 250);
}

}  // namespace
}  // namespace nibble::server
