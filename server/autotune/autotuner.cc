#include "server/autotune/autotuner.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/autotune/cache_file.h"
#include "server/autotune/served_weights.h"
#include "server/log/log.h"

namespace nibble::server {
namespace {

// How soon a busy device is looked at again.
constexpr std::chrono::milliseconds kLookAgain{10};
// A tuning never has more than this share of a device's memory: half of what weights leave to
// requests.
constexpr uint64_t kMemoryShare = 64;

// What other threads tell the tuner's. Shared with the timers under way.
struct Signals {
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  bool woken = true;             // there may be something to measure
  bool look_again = false;       // a timer has gone off
  std::vector<int64_t> loading;  // weights, of each device
};

class Gate final : public QuietGate {
 public:
  Gate(std::shared_ptr<Signals> signals, Autotuner::Activity activity, size_t device_index,
       Clock& clock, std::chrono::milliseconds quiet)
      : signals_(std::move(signals)),
        activity_(std::move(activity)),
        device_index_(device_index),
        clock_(clock),
        quiet_(quiet),
        quiet_since_(clock.Now()) {}

  bool Await() override {
    while (true) {
      {
        std::lock_guard lock(signals_->mutex);
        if (signals_->stopping) return false;
      }
      const Clock::TimePoint now = clock_.Now();
      const bool busy = Busy();
      if (busy) quiet_since_ = now;
      if (!busy && now - quiet_since_ >= quiet_) return true;
      WaitUntil(busy ? now + kLookAgain : quiet_since_ + quiet_);
    }
  }

  bool Disturbed() override {
    const bool busy = Busy();
    if (busy) quiet_since_ = clock_.Now();
    return busy;
  }

 private:
  // Whether the device has work now, or had since the last look.
  bool Busy() {
    const DeviceActivity activity = activity_(device_index_);
    const bool ran = std::exchange(batches_, activity.batches) != activity.batches;
    std::lock_guard lock(signals_->mutex);
    return activity.pending > 0 || ran || signals_->loading[device_index_] > 0;
  }

  void WaitUntil(Clock::TimePoint when) {
    std::unique_lock lock(signals_->mutex);
    signals_->look_again = false;
    const Clock::TimerId timer = clock_.RunAt(when, [signals = signals_] {
      std::lock_guard timer_lock(signals->mutex);
      signals->look_again = true;
      signals->changed.notify_all();
    });
    signals_->changed.wait(lock, [this] { return signals_->stopping || signals_->look_again; });
    lock.unlock();
    clock_.Cancel(timer);
  }

  const std::shared_ptr<Signals> signals_;
  const Autotuner::Activity activity_;
  const size_t device_index_;
  Clock& clock_;
  const std::chrono::milliseconds quiet_;
  Clock::TimePoint quiet_since_;
  uint64_t batches_ = 0;
};

// "1..7 cpu_gemv, 8..1024 cpu_gemm".
std::string CrossoversOf(const MeasuredMatmul& measured) {
  std::string text;
  for (size_t i = 0; i < measured.ranges.size();) {
    const ChoiceRange& first = measured.ranges[i];
    int64_t end = first.m_end;
    for (++i; i < measured.ranges.size(); ++i) {
      if (measured.ranges[i].choice.kernel != first.choice.kernel) break;
      end = measured.ranges[i].m_end;
    }
    text += fmt::format("{}{}..{} {}", text.empty() ? "" : ", ", first.m_begin, end,
                        first.choice.kernel);
  }
  return text;
}

// With the activations that callers of most weights send. What others send is measured when it
// comes.
MatmulKey UsualKey(const WeightSpec& spec) {
  MatmulKey key;
  key.weight = spec;
  if (spec.format == Format::kDense) key.input = key.output = spec.dtype;
  return key;
}

class ThreadAutotuner final : public Autotuner {
 public:
  ThreadAutotuner(const AutotuneOptions& options, const WeightStore& store,
                  std::vector<std::shared_ptr<TunedChoices>> tuned, Activity activity, Clock& clock)
      : options_(options),
        store_(store),
        tuned_(std::move(tuned)),
        activity_(std::move(activity)),
        clock_(clock) {
    signals_->loading.resize(store.devices().size());
    ReadCache();
    for (const auto& tuned_choices : tuned_) tuned_choices->OnWanted([this] { Wake(); });
    thread_ = std::thread([this] { Loop(); });
  }

  ~ThreadAutotuner() override { Stop(); }

  void OnWeights(size_t device_index, WeightState state, int64_t count) override {
    if (state == WeightState::kReady) Wake();
    if (state != WeightState::kLoading) return;
    std::lock_guard lock(signals_->mutex);
    signals_->loading[device_index] = count;
  }

  void Stop() override {
    std::call_once(stopped_, [this] {
      for (const auto& tuned : tuned_) tuned->OnWanted(nullptr);
      {
        std::lock_guard lock(signals_->mutex);
        signals_->stopping = true;
        signals_->changed.notify_all();
      }
      thread_.join();
    });
  }

 private:
  struct Work {
    size_t device_index = 0;
    MatmulKey key;
  };

  Device& device(size_t index) const { return *store_.devices()[index]; }

  void Wake() {
    std::lock_guard lock(signals_->mutex);
    signals_->woken = true;
    signals_->changed.notify_all();
  }

  void Loop() {
    while (true) {
      {
        std::unique_lock lock(signals_->mutex);
        signals_->changed.wait(lock, [this] { return signals_->stopping || signals_->woken; });
        if (signals_->stopping) return;
        signals_->woken = false;
      }
      while (const std::optional<Work> work = Next()) {
        if (!Measure(*work)) return;
      }
    }
  }

  // A key that is not settled and that a weight serves.
  std::optional<Work> Next() const {
    std::vector<std::vector<MatmulKey>> wanted;
    for (const auto& tuned : tuned_) wanted.push_back(tuned->Wanted());
    for (const WeightInfo& info : store_.List("")) {
      if (info.state != WeightState::kReady || !device(info.device_index).health().ok()) continue;
      const MatmulKey usual = UsualKey(info.spec);
      // A vector is multiplied by nobody.
      const bool vector = info.spec.format == Format::kDense && info.spec.n == 1;
      if (!vector && !tuned_[info.device_index]->Settled(usual)) {
        return Work{info.device_index, usual};
      }
      for (const MatmulKey& key : wanted[info.device_index]) {
        if (key.weight == info.spec) return Work{info.device_index, key};
      }
    }
    return std::nullopt;
  }

  // False when the thread has to end.
  bool Measure(const Work& work) {
    Device& on = device(work.device_index);
    TunedChoices& tuned = *tuned_[work.device_index];
    if (MatmulCandidates(ProblemOf(work.key, 1), on.info()).size() < 2 &&
        MatmulCandidates(ProblemOf(work.key, options_.limits.max_rows), on.info()).size() < 2) {
      tuned.GiveUp(work.key);
      return true;
    }
    Gate gate(signals_, activity_, work.device_index, clock_, options_.quiet);
    // Weights that are loaded now may make more memory free, or less, and more weights to measure.
    if (!gate.Await()) return false;
    TuningLimits limits = options_.limits;
    limits.memory_bytes = std::min(limits.memory_bytes, on.memory().total_bytes / kMemoryShare);
    ServedWeights weights(store_, work.device_index, work.key.weight);
    Tuning tuning = Tune(on, work.key, weights, gate, clock_, limits);
    if (tuning.end == TuningEnd::kStopped) return false;
    if (tuning.end == TuningEnd::kFault) {
      log::Warn("autotune_failed", {{"device", on.info().id},
                                    {"weight", weights.name()},
                                    {"error", MessageOf(tuning.fault)}});
    }
    // A weight that is gone may come again.
    if (tuning.end == TuningEnd::kWeightGone) return true;
    if (tuning.rows.empty() || tuning.end == TuningEnd::kFault) {
      tuned.GiveUp(work.key);
      return true;
    }
    const MeasuredMatmul measured = MakeMeasured(work.key, on.info(), std::move(tuning.rows));
    tuned.Put(work.key, measured);
    log::Info("autotuned",
              {{"device", on.info().id},
               {"weight", weights.name()},
               {"key", ToString(work.key)},
               {"choices", CrossoversOf(measured)},
               {"end", TuningEndName(tuning.end)},
               {"ms", std::chrono::duration<double, std::milli>(tuning.spent).count()}});
    WriteCache();
    return true;
  }

  void ReadCache() {
    if (options_.cache_file.empty()) return;
    const absl::StatusOr<std::string> text = ReadTuningFile(options_.cache_file);
    if (absl::IsNotFound(text.status()) || (text.ok() && text->empty())) return;
    absl::StatusOr<TuningCache> cache =
        text.ok() ? ParseTuningCache(*text) : absl::StatusOr<TuningCache>(text.status());
    if (!cache.ok()) {
      // Somebody else's, perhaps: it is not replaced.
      keeps_cache_ = false;
      log::Warn("autotune_cache_refused", {{"file", options_.cache_file},
                                           {"error", MessageOf(cache.status())},
                                           {"written", "never"}});
      return;
    }
    if (cache->build != options_.build) {
      log::Info(
          "autotune_cache_ignored",
          {{"file", options_.cache_file}, {"its_build", cache->build}, {"build", options_.build}});
      return;
    }
    std::set<const TunedChoices*> filled;
    size_t keys = 0;
    for (size_t i = 0; i < tuned_.size(); ++i) {
      if (!filled.insert(tuned_[i].get()).second) continue;
      const DeviceInfo& info = device(i).info();
      const auto section =
          std::ranges::find(cache->devices, IdentityOf(info), &TuningCache::Section::device);
      if (section == cache->devices.end()) {
        log::Info("autotune_cache_ignored",
                  {{"file", options_.cache_file},
                   {"its_device",
                    cache->devices.empty() ? "none" : ToString(cache->devices.front().device)},
                   {"device", ToString(IdentityOf(info))}});
        continue;
      }
      for (auto& [key, rows] : section->weights) {
        tuned_[i]->Put(key, MakeMeasured(key, info, std::move(rows)));
        ++keys;
      }
    }
    log::Info("autotune_cache", {{"file", options_.cache_file}, {"keys", keys}});
  }

  void WriteCache() const {
    if (options_.cache_file.empty() || !keeps_cache_) return;
    TuningCache cache;
    cache.build = options_.build;
    std::set<const TunedChoices*> written;
    for (size_t i = 0; i < tuned_.size(); ++i) {
      if (!written.insert(tuned_[i].get()).second) continue;
      TuningCache::Section& section = cache.devices.emplace_back();
      section.device = IdentityOf(device(i).info());
      for (auto& [key, measured] : tuned_[i]->All()) {
        section.weights.emplace_back(key, std::move(measured.rows));
      }
    }
    const absl::Status status = ReplaceTuningFile(options_.cache_file, WriteTuningCache(cache));
    if (!status.ok()) {
      log::Warn("autotune_cache_not_written",
                {{"file", options_.cache_file}, {"error", MessageOf(status)}});
    }
  }

  const AutotuneOptions options_;
  const WeightStore& store_;
  const std::vector<std::shared_ptr<TunedChoices>> tuned_;
  const Activity activity_;
  Clock& clock_;
  const std::shared_ptr<Signals> signals_ = std::make_shared<Signals>();
  bool keeps_cache_ = true;
  std::once_flag stopped_;
  std::thread thread_;
};

}  // namespace

std::vector<std::shared_ptr<TunedChoices>> MakeTunedChoices(const std::vector<Device*>& devices) {
  std::vector<std::shared_ptr<TunedChoices>> tuned;
  for (size_t i = 0; i < devices.size(); ++i) {
    size_t same = 0;
    while (!(IdentityOf(devices[same]->info()) == IdentityOf(devices[i]->info()))) ++same;
    tuned.push_back(same < i ? tuned[same] : std::make_shared<TunedChoices>());
  }
  return tuned;
}

std::unique_ptr<Autotuner> Autotuner::Start(const AutotuneOptions& options,
                                            const WeightStore& store,
                                            std::vector<std::shared_ptr<TunedChoices>> tuned,
                                            Activity activity, Clock& clock) {
  return std::make_unique<ThreadAutotuner>(options, store, std::move(tuned), std::move(activity),
                                           clock);
}

}  // namespace nibble::server
