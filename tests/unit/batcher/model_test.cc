// Random traffic against a model that knows, for every request, what must become of it. The model
// is naive on purpose: lists that are searched from the front.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "tests/unit/batcher/batcher_fixture.h"

namespace nibble::server {
namespace {

using std::chrono::microseconds;

class Model final : public BatchExecutor {
 public:
  Model(const Batcher::Options& options, int callers, uint32_t seed)
      : options_(options),
        callers_(callers),
        random_(seed),
        batcher_(options, clock_, *this, nullptr) {}

  void RunAll(int steps) {
    for (int step = 0; step < steps; ++step) {
      const int action = Pick(0, 9);
      if (action < 4) Submit();
      if (action == 4 && !requests_.empty()) Cancel();
      if (action > 4 && action < 8) Complete();
      if (action > 7) Advance(microseconds(Pick(1, 12)));
      Check();
      if (::testing::Test::HasFailure()) return;
    }
    while (!held_.empty() || batcher_.pending() > 0) {
      Complete();
      Advance(options_.max_queue_delay);
    }
    Check();
    for (const Entry& entry : requests_) {
      EXPECT_EQ(entry.done_calls, entry.accepted ? 1 : 0);
    }
    EXPECT_EQ(batcher_.queued_rows(), 0);
  }

  void Run(Batch batch, std::function<void(const BatchResult&)> done) override {
    ExpireQueued();
    EXPECT_LT(held_.size(), static_cast<size_t>(options_.batches_in_flight));
    EXPECT_LE(batch.rows, options_.max_batch_rows);
    int64_t rows = 0;
    for (const Piece& piece : batch.pieces) {
      const size_t id = *static_cast<const size_t*>(piece.payload.get());
      Entry& entry = requests_.at(id);
      EXPECT_EQ(entry.key, batch.key.parts[0]);
      EXPECT_EQ(&entry, OldestQueued(entry.key, entry.caller)) << "order within key and caller";
      EXPECT_EQ(piece.row_begin, entry.rows_started) << "rows neither skipped nor repeated";
      EXPECT_GT(piece.rows, 0);
      if (entry.rows <= options_.max_batch_rows) {
        EXPECT_EQ(piece.rows, entry.rows);
      }
      if (rows == 0) CheckMayLead(entry);
      entry.rows_started += piece.rows;
      ++entry.in_flight;
      rows += piece.rows;
    }
    EXPECT_EQ(rows, batch.rows);
    // Something that would not have fitted stays behind, or nothing does.
    bool any = false;
    bool fits = true;
    for (uint64_t caller = 0; caller < static_cast<uint64_t>(callers_); ++caller) {
      const Entry* next = OldestQueued(batch.key.parts[0], caller);
      if (next == nullptr) continue;
      any = true;
      const bool splits = next->rows > options_.max_batch_rows;
      fits &= rows + (splits ? 1 : next->rows) <= options_.max_batch_rows;
    }
    EXPECT_FALSE(any && fits);
    held_.push_back({std::move(batch), std::move(done)});
  }

 private:
  struct Entry {
    size_t id = 0;
    uint64_t key = 0;
    uint64_t caller = 0;
    int64_t rows = 0;
    uint64_t bytes = 0;
    Clock::TimePoint submitted, deadline;
    bool accepted = false;
    Batcher::Ticket ticket = 0;
    int64_t rows_started = 0;
    int in_flight = 0;
    absl::StatusCode expected = absl::StatusCode::kOk;
    int done_calls = 0;

    bool queued() const {
      return accepted && expected == absl::StatusCode::kOk && rows_started < rows;
    }
    // Whether done must have been called.
    bool over() const { return accepted && in_flight == 0 && !queued(); }
  };
  struct Held {
    Batch batch;
    std::function<void(const BatchResult&)> done;
  };

  int Pick(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }

  void Submit() {
    ExpireQueued();
    const size_t id = requests_.size();
    Entry& entry = requests_.emplace_back();
    entry.id = id;
    entry.key = static_cast<uint64_t>(Pick(0, 3));
    entry.caller = static_cast<uint64_t>(Pick(0, callers_ - 1));
    entry.rows = Pick(0, 7) == 0 ? Pick(1, 60) : Pick(1, 9);
    entry.bytes = static_cast<uint64_t>(Pick(0, 40));
    entry.submitted = clock_.Now();
    entry.deadline =
        Pick(0, 1) == 0 ? Clock::TimePoint::max() : clock_.Now() + microseconds(Pick(0, 40));
    const bool expected = entry.deadline > clock_.Now() && entry.rows <= options_.max_queue_rows &&
                          entry.bytes <= options_.max_queue_bytes && MakeRoom(entry);
    Work work;
    work.key = Key(entry.key);
    work.caller = entry.caller;
    work.rows = entry.rows;
    work.bytes = entry.bytes;
    work.deadline = entry.deadline;
    work.payload = std::make_shared<size_t>(id);
    work.done = [this, id](const Outcome& outcome) {
      Entry& ended = requests_.at(id);
      ++ended.done_calls;
      EXPECT_EQ(ended.in_flight, 0);
      EXPECT_EQ(outcome.status.code(), ended.expected);
      if (outcome.status.ok()) {
        EXPECT_EQ(ended.rows_started, ended.rows);
      }
    };
    entry.accepted = expected;  // before Submit: it may call Run
    const absl::StatusOr<Batcher::Ticket> ticket = batcher_.Submit(std::move(work));
    ASSERT_EQ(ticket.ok(), expected) << ticket.status();
    if (ticket.ok()) requests_.at(id).ticket = *ticket;
  }

  struct Use {
    int64_t rows = 0;
    uint64_t bytes = 0;
  };
  double Share(const Use& use) const {
    return std::max(static_cast<double>(use.rows) / static_cast<double>(options_.max_queue_rows),
                    static_cast<double>(use.bytes) / static_cast<double>(options_.max_queue_bytes));
  }

  // Ends requests of those who hold most until `entry` fits, where it is within an equal share.
  bool MakeRoom(const Entry& entry) {
    while (true) {
      std::map<uint64_t, Use> uses;
      std::map<uint64_t, Entry*> newest;
      Use all{entry.rows, entry.bytes};
      for (Entry& other : requests_) {
        if (!other.queued()) continue;
        uses[other.caller].rows += other.rows - other.rows_started;
        uses[other.caller].bytes += other.bytes;
        all.rows += other.rows - other.rows_started;
        all.bytes += other.bytes;
        newest[other.caller] = &other;
      }
      if (all.rows <= options_.max_queue_rows && all.bytes <= options_.max_queue_bytes) return true;
      Use own = uses[entry.caller];
      own.rows += entry.rows;
      own.bytes += entry.bytes;
      const double share = 1.0 / static_cast<double>(uses.size());
      if (Share(own) > share) return false;
      const Entry* most = nullptr;
      for (const auto& [caller, entry_of] : newest) {
        const double held = Share(uses[caller]);
        if (held <= share) continue;
        const double most_held = most == nullptr ? 0 : Share(uses[most->caller]);
        if (held > most_held || (held == most_held && entry_of->id > most->id)) most = entry_of;
      }
      Entry* evicted = nullptr;
      for (Entry& other : requests_) {
        const bool candidate = most != nullptr && other.queued() && other.caller == most->caller;
        if (candidate && other.rows_started == 0) evicted = &other;
      }
      if (evicted == nullptr) return false;
      evicted->expected = absl::StatusCode::kResourceExhausted;
    }
  }

  void Cancel() {
    Entry& entry =
        requests_.at(static_cast<size_t>(Pick(0, static_cast<int>(requests_.size()) - 1)));
    if (!entry.accepted) return;
    if (entry.expected == absl::StatusCode::kOk && !entry.over()) {
      entry.expected = absl::StatusCode::kCancelled;
    }
    batcher_.Cancel(entry.ticket);
  }

  void Complete() {
    if (held_.empty()) return;
    const size_t index = static_cast<size_t>(Pick(0, static_cast<int>(held_.size()) - 1));
    Held held = std::move(held_[index]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
    BatchResult result;
    if (Pick(0, 9) == 0) result.status = absl::InternalError("fault");
    for (const Piece& piece : held.batch.pieces) {
      Entry& entry = requests_.at(*static_cast<const size_t*>(piece.payload.get()));
      --entry.in_flight;
      if (entry.expected == absl::StatusCode::kOk) entry.expected = result.status.code();
    }
    held.done(result);
  }

  // In steps, so that the model knows what has expired at every instant at which a timer runs.
  void Advance(Clock::Duration duration) {
    for (const Clock::TimePoint end = clock_.Now() + duration; clock_.Now() < end;) {
      next_instant_ = clock_.Now() + microseconds(1);
      ExpireQueued();
      clock_.AdvanceTo(next_instant_);
    }
  }

  void ExpireQueued() {
    const Clock::TimePoint now = std::max(clock_.Now(), next_instant_);
    for (Entry& entry : requests_) {
      if (entry.queued() && entry.deadline <= now) {
        entry.expected = absl::StatusCode::kDeadlineExceeded;
      }
    }
  }

  const Entry* OldestQueued(uint64_t key, uint64_t caller) const {
    for (const Entry& entry : requests_) {
      if (entry.queued() && entry.key == key && entry.caller == caller) return &entry;
    }
    return nullptr;
  }

  int64_t QueuedRows(uint64_t key) const {
    int64_t rows = 0;
    for (const Entry& entry : requests_) {
      if (entry.queued() && entry.key == key) rows += entry.rows - entry.rows_started;
    }
    return rows;
  }

  bool Ripe(const Entry& entry) const {
    return entry.submitted + options_.max_queue_delay <= clock_.Now();
  }

  // The key of a batch is that of some caller's oldest request when that one is ripe (of which, are
  // fairness_test.cc's turns), else that of the oldest among the keys that fill a batch.
  void CheckMayLead(const Entry& leader) const {
    std::set<uint64_t> seen;
    bool any_ripe = false;
    for (const Entry& entry : requests_) {
      if (!entry.queued() || !seen.insert(entry.caller).second) continue;
      any_ripe |= Ripe(entry);
      if (Ripe(entry) && entry.key == leader.key) return;
    }
    EXPECT_FALSE(any_ripe) << "a batch of a key that nobody's oldest request has";
    for (const Entry& entry : requests_) {
      if (!entry.queued() || QueuedRows(entry.key) < options_.max_batch_rows) continue;
      EXPECT_EQ(entry.key, leader.key);
      return;
    }
    ADD_FAILURE() << "a batch that should be held";
  }

  void Check() {
    int64_t queued_rows = 0;
    int64_t pending = 0;
    bool could_start = false;
    for (const Entry& entry : requests_) {
      if (!entry.accepted) continue;
      EXPECT_EQ(entry.done_calls, entry.over() ? 1 : 0);
      if (!entry.over()) ++pending;
      if (!entry.queued()) continue;
      queued_rows += entry.rows - entry.rows_started;
      could_start |= Ripe(entry) || QueuedRows(entry.key) >= options_.max_batch_rows;
    }
    EXPECT_EQ(batcher_.queued_rows(), queued_rows);
    EXPECT_EQ(batcher_.pending(), pending);
    EXPECT_LE(queued_rows, options_.max_queue_rows);
    const bool idle = held_.size() < static_cast<size_t>(options_.batches_in_flight);
    EXPECT_FALSE(could_start && idle) << "an idle device and rows that may start";
  }

  const Batcher::Options options_;
  const int callers_;
  std::mt19937 random_;
  testing::FakeClock clock_;
  Clock::TimePoint next_instant_ = Clock::TimePoint::min();
  std::deque<Entry> requests_;
  std::vector<Held> held_;
  Batcher batcher_;
};

class BatcherModelTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(BatcherModelTest, RandomTraffic) {
  const uint32_t seed = GetParam();
  Batcher::Options options;
  options.max_batch_rows = std::array{1, 8, 16, 64}[seed % 4];
  options.max_queue_rows = std::array{70, 200}[seed % 2];
  options.max_queue_bytes = std::array{100, 400, 100000}[seed % 3];
  options.batches_in_flight = 1 + static_cast<int>(seed % 3);
  options.max_queue_delay = microseconds(std::array{0, 0, 5, 25, 10}[seed % 5]);
  options.contended_batch = microseconds(0);
  const int callers = std::array{1, 3, 2, 8}[seed / 4 % 4];
  Model(options, callers, seed).RunAll(600);
}

INSTANTIATE_TEST_SUITE_P(Seeds, BatcherModelTest, ::testing::Range(1u, 41u));

}  // namespace
}  // namespace nibble::server
