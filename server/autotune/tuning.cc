#include "server/autotune/tuning.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "nibble/status.h"
#include "server/autotune/matmul_timer.h"

namespace nibble::server {
namespace {

constexpr int kSamples = 7;
// Kernels this much slower than the fastest are not timed again.
constexpr double kHopeless = 2.0;
// Launches of a sample take about this long together, where one does not already.
constexpr double kSampleUs = 1000.0;
constexpr int kMaxLaunches = 32;
constexpr int kRefinements = 3;

class Tuner {
 public:
  Tuner(Device& device, const MatmulKey& key, ServedWeights& weights, QuietGate& gate, Clock& clock,
        const TuningLimits& limits)
      : device_(device),
        key_(key),
        weights_(weights),
        gate_(gate),
        clock_(clock),
        limits_(limits) {}

  Tuning Run() {
    auto timer = MatmulTimer::Create(device_, key_, limits_.memory_bytes);
    if (!timer.ok()) {
      End(TuningEnd::kFault, timer.status());
      return std::move(tuning_);
    }
    timer_ = *std::move(timer);
    std::vector<int64_t> grid;
    for (int64_t m = 1; m < limits_.max_rows; m *= 2) grid.push_back(m);
    grid.push_back(limits_.max_rows);
    for (const int64_t m : grid) {
      if (!MeasureRows(m)) break;
    }
    // More rows than these are too long; crossovers among fewer are not.
    if (tuning_.end == TuningEnd::kComplete || tuning_.end == TuningEnd::kTooLong) Refine();
    return std::move(tuning_);
  }

 private:
  struct Timed {
    Choice choice;
    double first_us = 0;
    std::vector<double> samples_us;
  };

  bool End(TuningEnd end, absl::Status fault = absl::OkStatus()) {
    tuning_.end = end;
    tuning_.fault = std::move(fault);
    return false;
  }

  std::string_view WinnerOf(const MeasuredRows& rows) const {
    return BestMeasured(key_, device_.info(), rows).kernel;
  }

  void Refine() {
    const std::vector<MeasuredRows> grid = tuning_.rows;
    for (size_t upper = 1; upper < grid.size(); ++upper) {
      const std::string_view lower_winner = WinnerOf(grid[upper - 1]);
      if (lower_winner == WinnerOf(grid[upper])) continue;
      int64_t below = grid[upper - 1].m;
      int64_t above = grid[upper].m;
      for (int step = 0; step < kRefinements && above - below > 1; ++step) {
        const int64_t middle = below + (above - below) / 2;
        if (!MeasureRows(middle)) return;
        const auto rows = std::ranges::find(tuning_.rows, middle, &MeasuredRows::m);
        (WinnerOf(*rows) == lower_winner ? below : above) = middle;
      }
    }
  }

  // Adds the times of m rows; false when the tuning has ended.
  bool MeasureRows(int64_t m) {
    const Choice built_in = Select(ProblemOf(key_, m), device_.info());
    if (LikelyTooLong(built_in, m)) return End(TuningEnd::kTooLong);
    std::vector<Timed> timed;
    for (const Choice& choice : MatmulCandidates(ProblemOf(key_, m), device_.info())) {
      if (!LikelyTooLong(choice, m)) timed.push_back({choice});
    }
    if (!TimeFirst(m, built_in, timed)) return false;
    double least = timed.front().first_us;
    for (const Timed& one : timed) least = std::min(least, one.first_us);
    for (int sample = 0; sample < kSamples; ++sample) {
      for (Timed& one : timed) {
        if (one.first_us > kHopeless * least && one.choice != built_in) continue;
        const int launches = static_cast<int>(
            std::clamp(kSampleUs / std::max(one.first_us, 1.0), 1.0, double{kMaxLaunches}));
        std::optional<double> us;
        if (!Sample(one.choice, m, launches, us)) return false;
        if (us) one.samples_us.push_back(*us);
      }
    }
    MeasuredRows rows{m, {}};
    for (const Timed& one : timed) {
      const double us = one.samples_us.empty() ? one.first_us : std::ranges::min(one.samples_us);
      if (us > 0.0) rows.times.push_back({one.choice.kernel, us});
    }
    // As the cache file has them.
    std::ranges::sort(rows.times, {}, &MeasuredTime::kernel);
    const auto at = std::ranges::lower_bound(tuning_.rows, m, {}, &MeasuredRows::m);
    tuning_.rows.insert(at, std::move(rows));
    return true;
  }

  // The time of one launch each, after another that may have had things to set up. Drops kernels
  // that cannot run; false also where the built-in one is among them.
  bool TimeFirst(int64_t m, const Choice& built_in, std::vector<Timed>& timed) {
    std::vector<Timed> able;
    for (Timed& one : timed) {
      std::optional<double> us;
      if (!Sample(one.choice, m, 1, us)) return false;
      if (!us) continue;
      if (!Sample(one.choice, m, 1, us)) return false;
      if (!us) continue;
      one.first_us = *us;
      able.push_back(std::move(one));
    }
    timed = std::move(able);
    const bool comparable = std::ranges::find(timed, built_in, &Timed::choice) != timed.end();
    return comparable || End(TuningEnd::kTooLong);
  }

  // By the nearest fewer rows: at most proportional to them.
  bool LikelyTooLong(const Choice& choice, int64_t m) const {
    for (auto rows = tuning_.rows.rbegin(); rows != tuning_.rows.rend(); ++rows) {
      const double us = TimeOf(*rows, choice.kernel);
      if (rows->m > m || us <= 0.0) continue;
      const double ratio = static_cast<double>(m) / static_cast<double>(rows->m);
      return us * ratio > std::chrono::duration<double, std::micro>(limits_.longest_launch).count();
    }
    return false;
  }

  // One undisturbed measurement; `us` stays empty where this kernel cannot run. False when the
  // tuning has ended.
  bool Sample(const Choice& choice, int64_t m, int launches, std::optional<double>& us) {
    us.reset();
    while (true) {
      if (tuning_.spent >= limits_.budget) return End(TuningEnd::kBudget);
      if (!gate_.Await()) return End(TuningEnd::kStopped);
      const Clock::TimePoint begin = clock_.Now();
      std::vector<WeightHandle> held = weights_.Hold();
      if (held.empty()) return End(TuningEnd::kWeightGone);
      const absl::StatusOr<double> measured = timer_->Time(choice, m, held, launches);
      held.clear();
      tuning_.spent += clock_.Now() - begin;
      if (absl::Status health = device_.health(); !health.ok()) {
        return End(TuningEnd::kFault, std::move(health));
      }
      if (!measured.ok()) return true;
      if (gate_.Disturbed()) continue;
      us = *measured;
      return true;
    }
  }

  Device& device_;
  const MatmulKey& key_;
  ServedWeights& weights_;
  QuietGate& gate_;
  Clock& clock_;
  const TuningLimits& limits_;
  std::unique_ptr<MatmulTimer> timer_;
  Tuning tuning_;
};

}  // namespace

std::string_view TuningEndName(TuningEnd end) {
  switch (end) {
    case TuningEnd::kComplete:
      return "complete";
    case TuningEnd::kBudget:
      return "budget";
    case TuningEnd::kTooLong:
      return "too_long";
    case TuningEnd::kWeightGone:
      return "weight_gone";
    case TuningEnd::kStopped:
      return "stopped";
    case TuningEnd::kFault:
      return "fault";
  }
  return "unknown";
}

Tuning Tune(Device& device, const MatmulKey& key, ServedWeights& weights, QuietGate& gate,
            Clock& clock, const TuningLimits& limits) {
  return Tuner(device, key, weights, gate, clock, limits).Run();
}

}  // namespace nibble::server
