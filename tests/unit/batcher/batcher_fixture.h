// A batcher between a fake clock, a puppet executor and an observer that remembers.
#ifndef NIBBLE_TESTS_UNIT_BATCHER_BATCHER_FIXTURE_H_
#define NIBBLE_TESTS_UNIT_BATCHER_BATCHER_FIXTURE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "server/batcher/batcher.h"
#include "tests/support/fake_clock.h"
#include "tests/support/puppet_executor.h"

namespace nibble::server {

inline BatchKey Key(uint64_t first) { return BatchKey{{first, 0, 0, 0}}; }

class RecordingObserver final : public BatcherObserver {
 public:
  void OnQueueRows(int64_t queued_rows) override { queue_rows.push_back(queued_rows); }
  void OnBatchFormed(int op, int64_t rows) override { batches.emplace_back(op, rows); }
  void OnQueued(int op, double queue_us) override { queued.emplace_back(op, queue_us); }
  void OnRejected(RejectReason reason) override { rejected.push_back(reason); }

  std::vector<int64_t> queue_rows;
  std::vector<std::pair<int, int64_t>> batches;
  std::vector<std::pair<int, double>> queued;
  std::vector<RejectReason> rejected;
};

// What a test says of a request beyond its key and rows.
struct Extra {
  std::optional<std::chrono::microseconds> deadline = {};  // from now
  uint64_t bytes = 0;
  std::function<void()> on_done = {};
  int op = 0;
  uint64_t caller = 0;
};

class BatcherTest : public ::testing::Test {
 protected:
  // What became of a request; requests are numbered in the order of their submission.
  struct Sent {
    int64_t rows = 0;
    Batcher::Ticket ticket = 0;
    int done_calls = 0;
    Outcome outcome = {};
  };
  void Start(const Batcher::Options& options) {
    batcher_ = std::make_unique<Batcher>(options, clock_, executor_, &observer_);
  }

  // The number of the request, or the refusal.
  absl::StatusOr<int> TrySend(uint64_t key, int64_t rows, Extra extra = {}) {
    const int id = static_cast<int>(sent_.size());
    sent_.push_back({.rows = rows});
    Work work;
    work.key = Key(key);
    work.rows = rows;
    work.bytes = extra.bytes;
    work.op = extra.op;
    work.caller = extra.caller;
    if (extra.deadline.has_value()) work.deadline = clock_.Now() + *extra.deadline;
    work.payload = std::make_shared<int>(id);
    work.done = [this, id, on_done = std::move(extra.on_done)](const Outcome& outcome) {
      ++sent_.at(id).done_calls;
      sent_.at(id).outcome = outcome;
      order_.push_back(id);
      if (on_done) on_done();
    };
    absl::StatusOr<Batcher::Ticket> ticket = batcher_->Submit(std::move(work));
    if (!ticket.ok()) return ticket.status();
    sent_.at(id).ticket = *ticket;
    return id;
  }

  int Send(uint64_t key, int64_t rows, Extra extra = {}) {
    absl::StatusOr<int> id = TrySend(key, rows, std::move(extra));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.ok() ? *id : -1;
  }

  void Cancel(int id) { batcher_->Cancel(sent_.at(id).ticket); }
  bool Ended(int id) const { return sent_.at(id).done_calls > 0; }
  absl::StatusCode Code(int id) const {
    EXPECT_EQ(sent_.at(id).done_calls, 1) << "request " << id;
    return sent_.at(id).outcome.status.code();
  }

  // "2[0,3) 4[8,16)": the pieces of a batch, by request.
  static std::string Pieces(const Batch& batch) {
    std::string text;
    for (const Piece& piece : batch.pieces) {
      text += fmt::format("{}{}[{},{})", text.empty() ? "" : " ",
                          *static_cast<const int*>(piece.payload.get()), piece.row_begin,
                          piece.row_begin + piece.rows);
    }
    return text;
  }
  std::string HeldPieces(size_t index = 0) const { return Pieces(executor_.batch(index)); }
  void ReleaseAll() {
    while (executor_.held() > 0) executor_.Release();
  }

  testing::FakeClock clock_;
  testing::PuppetExecutor executor_;
  RecordingObserver observer_;
  std::vector<Sent> sent_;
  std::vector<int> order_;  // requests in the order in which they ended
  std::unique_ptr<Batcher> batcher_;
};

}  // namespace nibble::server

#endif  // NIBBLE_TESTS_UNIT_BATCHER_BATCHER_FIXTURE_H_
