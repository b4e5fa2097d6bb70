// Many threads at once, with the real clock: for ThreadSanitizer. Counts are fixed, nothing sleeps.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/batcher/batcher.h"
#include "server/clock/clock.h"

namespace nibble::server {
namespace {

constexpr int kProducers = 3;
constexpr int kRequestsEach = 1500;

// What the executor works on. The fields are plain on purpose: the batcher's promises are what
// keeps them free of races.
struct Rows {
  std::vector<int> runs;  // of each row
  bool ended = false;
};

// Two threads that complete batches as they come.
class ThreadedExecutor final : public BatchExecutor {
 public:
  ThreadedExecutor() {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { Loop(); });
  }
  ~ThreadedExecutor() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(Batch batch, std::function<void(const BatchResult&)> done) override {
    {
      std::lock_guard lock(mutex_);
      batches_.emplace_back(std::move(batch), std::move(done));
    }
    wake_.notify_one();
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !batches_.empty(); });
      if (batches_.empty()) return;
      auto [batch, done] = std::move(batches_.front());
      batches_.pop_front();
      const bool fails = ++count_ % 50 == 0;
      lock.unlock();
      for (const Piece& piece : batch.pieces) {
        Rows& rows = *static_cast<Rows*>(piece.payload.get());
        EXPECT_FALSE(rows.ended);
        for (int64_t i = 0; i < piece.rows; ++i) ++rows.runs[piece.row_begin + i];
      }
      batch.pieces.clear();
      done({fails ? absl::InternalError("fault") : absl::OkStatus(), "test", 1});
      done = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<Batch, std::function<void(const BatchResult&)>>> batches_;
  std::vector<std::thread> threads_;
  int count_ = 0;
  bool stopping_ = false;
};

class CountingObserver final : public BatcherObserver {
 public:
  void OnQueueRows(int64_t rows) override { queue_rows.store(rows); }
  void OnBatchFormed(int, int64_t) override { ++batches; }
  void OnQueued(int, double) override { ++queued; }
  void OnRejected(RejectReason) override { ++rejected; }
  std::atomic<int64_t> queue_rows{0}, batches{0}, queued{0}, rejected{0};
};

TEST(BatcherStressTest, SubmitCancelExpireAndFailFromManyThreads) {
  const std::unique_ptr<Clock> clock = CreateRealClock();
  ThreadedExecutor executor;
  CountingObserver observer;
  Batcher::Options options;
  options.max_batch_rows = 16;
  options.max_queue_rows = 400;
  options.batches_in_flight = 2;
  options.max_queue_delay = std::chrono::microseconds(20);
  auto batcher = std::make_unique<Batcher>(options, *clock, executor, &observer);

  std::mutex mutex;
  std::condition_variable all_ended;
  int64_t open = kProducers;  // requests not ended, and producers not finished
  std::atomic<int64_t> accepted{0}, ended{0}, ok{0};

  const auto produce = [&](int producer) {
    std::mt19937 random(static_cast<uint32_t>(producer));
    std::vector<Batcher::Ticket> tickets;
    for (int i = 0; i < kRequestsEach; ++i) {
      const auto rows = std::make_shared<Rows>();
      rows->runs.resize(random() % 16 == 0 ? 1 + random() % 64 : 1 + random() % 8);
      Work work;
      work.key = BatchKey{{random() % 3, 0, 0, 0}};
      work.rows = static_cast<int64_t>(rows->runs.size());
      work.payload = rows;
      if (random() % 4 == 0) {
        work.deadline = clock->Now() + std::chrono::microseconds(random() % 300);
      }
      work.done = [&, rows](const Outcome& outcome) {
        EXPECT_FALSE(rows->ended) << "done is called once";
        rows->ended = true;
        for (const int runs : rows->runs) {
          EXPECT_LE(runs, 1);
          EXPECT_TRUE(runs == 1 || !outcome.status.ok());
        }
        if (outcome.status.ok()) ++ok;
        ++ended;
        std::lock_guard lock(mutex);
        if (--open == 0) all_ended.notify_one();
      };
      {
        std::lock_guard lock(mutex);
        ++open;
      }
      const absl::StatusOr<Batcher::Ticket> ticket = batcher->Submit(std::move(work));
      if (ticket.ok()) {
        ++accepted;
        tickets.push_back(*ticket);
      } else {
        std::lock_guard lock(mutex);
        --open;
      }
      if (random() % 8 == 0 && !tickets.empty()) {
        batcher->Cancel(
            tickets[tickets.size() - 1 - random() % std::min<size_t>(tickets.size(), 4)]);
      }
      if (random() % 256 == 0) batcher->FailQueued(absl::UnavailableError("test"));
    }
    std::lock_guard lock(mutex);
    if (--open == 0) all_ended.notify_one();
  };
  std::vector<std::thread> producers;
  for (int i = 0; i < kProducers; ++i) producers.emplace_back(produce, i);
  for (std::thread& producer : producers) producer.join();
  batcher->StopAccepting();
  {
    std::unique_lock lock(mutex);
    all_ended.wait(lock, [&] { return open == 0; });
  }
  // At once, while other threads are still on their way out of the last callbacks.
  batcher.reset();
  EXPECT_EQ(ended.load(), accepted.load());
  EXPECT_GT(ok.load(), 0);
  EXPECT_EQ(observer.queue_rows.load(), 0);
  EXPECT_LE(observer.queued.load(), accepted.load());
}

TEST(BatcherStressTest, DoneSubmitsTheNextFromTheExecutorsThreads) {
  const std::unique_ptr<Clock> clock = CreateRealClock();
  ThreadedExecutor executor;
  Batcher::Options options;
  options.batches_in_flight = 2;
  auto batcher = std::make_unique<Batcher>(options, *clock, executor, nullptr);
  std::mutex mutex;
  std::condition_variable finished;
  int running = 8;
  std::function<void(int)> next = [&](int left) {
    if (left == 0) {
      std::lock_guard lock(mutex);
      if (--running == 0) finished.notify_one();
      return;
    }
    Work work;
    work.rows = 1;
    const auto rows = std::make_shared<Rows>();
    rows->runs.resize(1);
    work.payload = rows;
    work.done = [&next, left](const Outcome&) { next(left - 1); };
    ASSERT_TRUE(batcher->Submit(std::move(work)).ok());
  };
  for (int i = 0; i < 8; ++i) next(500);
  {
    std::unique_lock lock(mutex);
    finished.wait(lock, [&] { return running == 0; });
  }
  batcher.reset();
}

}  // namespace
}  // namespace nibble::server
