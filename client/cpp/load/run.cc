#include "client/cpp/load/run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "client/cpp/load/ledger.h"
#include "client/cpp/load/worker.h"

namespace nibble::load {
namespace {

constexpr std::chrono::milliseconds kStopCheck{20};

// Tells when all of a run's threads are done.
class Finish {
 public:
  explicit Finish(size_t threads) : left_(threads) {}
  void Arrive() {
    std::lock_guard lock(mutex_);
    if (--left_ == 0) done_.notify_all();
  }
  // Whether all are done by then.
  bool WaitFor(int64_t wait_ns) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(wait_ns, 0)),
                          [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  size_t left_;
};

// Exchanges of an open loop: as many as are needed, at most plan.max_in_flight, spread over the
// senders.
class ExchangePool {
 public:
  ExchangePool(const RunPlan& plan, std::span<const std::unique_ptr<Sender>> senders)
      : limit_(static_cast<size_t>(plan.max_in_flight)), senders_(senders) {
    const int64_t first = std::min(plan.max_in_flight, plan.least_exchanges);
    while (made_.size() < static_cast<size_t>(first)) free_.push_back(Make());
  }

  // Of the one thread that keeps the time. Null where `stop` says so after a wait for one.
  Exchange* Acquire(const std::function<bool()>& stop) {
    {
      std::unique_lock lock(mutex_);
      while (free_.empty() && made_.size() >= limit_) {
        freed_.wait_for(lock, kStopCheck);
        if (stop()) return nullptr;
      }
      if (!free_.empty()) {
        // The one that has been free for longest, so that all connections are used.
        Exchange* const exchange = free_.front();
        free_.pop_front();
        return exchange;
      }
    }
    return Make();
  }
  void Release(Exchange& exchange) {
    std::lock_guard lock(mutex_);
    free_.push_back(&exchange);
    freed_.notify_one();
  }

 private:
  Exchange* Make() {
    made_.push_back(senders_[made_.size() % senders_.size()]->MakeExchange(made_.size()));
    return made_.back().get();
  }

  const size_t limit_;
  const std::span<const std::unique_ptr<Sender>> senders_;
  std::vector<std::unique_ptr<Exchange>> made_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::deque<Exchange*> free_;
};

// Watches a run from its beginning to its end and gathers what the ledgers hold.
class Observer {
 public:
  Observer(const RunPlan& plan, Measurement& measurement, Clock& clock, const RunActions& actions,
           std::span<const std::unique_ptr<Worker>> workers)
      : plan_(plan),
        measurement_(measurement),
        clock_(clock),
        actions_(actions),
        workers_(workers) {}

  RunResult Watch(Finish& finish) {
    const int64_t begin_ns = measurement_.begin_ns();
    int64_t window_begin_ns = begin_ns;
    int64_t end_ns = 0;
    bool finished = finish.WaitFor(begin_ns - clock_.NowNs());
    while (!finished && end_ns == 0) {
      const int64_t boundary_ns = window_begin_ns + plan_.window_ns;
      finished = finish.WaitFor(boundary_ns - clock_.NowNs());
      if (finished) break;
      const int64_t now_ns = clock_.NowNs();
      CloseWindow(static_cast<double>(now_ns - window_begin_ns) / 1e9);
      window_begin_ns = now_ns;
      if (plan_.requests == 0 && IsLong(now_ns - begin_ns)) end_ns = now_ns;
      if (measurement_.over()) break;
    }
    if (end_ns != 0) measurement_.End(end_ns);
    result_.arrived = result_.total.volume;
    while (!finish.WaitFor(plan_.window_ns)) {
    }
    Gather();
    if (end_ns == 0) {  // all that was wanted has ended: the measurement lasted until then
      end_ns = result_.total.last_ns;
      result_.arrived = result_.total.volume;
    }
    result_.seconds = std::max(static_cast<double>(end_ns - begin_ns) / 1e9, 1e-9);
    result_.offered_rate = static_cast<double>(measurement_.wanted()) / result_.seconds;
    result_.stability = StabilityOf(result_.windows, plan_.stability_percent);
    return std::move(result_);
  }

 private:
  bool IsLong(int64_t elapsed_ns) const {
    if (elapsed_ns < plan_.measure_ns) return false;
    return elapsed_ns >= plan_.longest_ns ||
           StabilityOf(result_.windows, plan_.stability_percent).stable;
  }

  Tally Gather() {
    Tally gathered;
    for (const auto& worker : workers_) gathered.Merge(worker->ledger().Take());
    result_.total.Merge(gathered);
    return gathered;
  }

  void CloseWindow(double seconds) {
    const Tally tally = Gather();
    Window window;
    window.seconds = seconds;
    window.answers = tally.volume.answers;
    window.failures = tally.failures() + tally.mismatches;
    window.p99_ns = tally.latency_ns.Quantile(0.99);
    result_.windows.push_back(window);
    if (actions_.on_window) actions_.on_window(window, result_.total);
  }

  const RunPlan& plan_;
  Measurement& measurement_;
  Clock& clock_;
  const RunActions& actions_;
  const std::span<const std::unique_ptr<Worker>> workers_;
  RunResult result_;
};

using Workers = std::span<const std::unique_ptr<Worker>>;

RunResult RunClosed(const RunPlan& plan, Workers workers, Observer& observer) {
  for (int64_t i = 0; i < plan.concurrency; ++i) {
    workers[static_cast<size_t>(i) % workers.size()]->AddCaller(static_cast<size_t>(i));
  }
  Finish finish(workers.size());
  std::vector<std::jthread> threads;
  for (const auto& worker : workers) {
    threads.emplace_back([&finish, &runs = *worker] {
      runs.RunClosed();
      finish.Arrive();
    });
  }
  return observer.Watch(finish);
}

// Sends what the schedule of an open loop says.
class Timekeeper {
 public:
  Timekeeper(const RunPlan& plan, Clock& clock, const RunActions& actions, Measurement& measurement,
             Workers workers, ExchangePool& pool)
      : plan_(plan),
        clock_(clock),
        actions_(actions),
        measurement_(measurement),
        workers_(workers),
        pool_(pool),
        random_(plan.seed) {}

  // Whether it gave up.
  bool Keep(int64_t start_ns) {
    ArrivalSchedule schedule(plan_.arrivals, plan_.rate, plan_.seed);
    const std::function<bool()> too_late = [this] {
      return measurement_.OverFor(clock_.NowNs()) >= plan_.drain_ns && measurement_.over();
    };
    const PacerActions actions = {
        .wanted = [this](int64_t intended_ns) { return measurement_.Wants(intended_ns); },
        .over = [this] { return measurement_.over(); },
        .acquire = [&] { return too_late() ? nullptr : pool_.Acquire(too_late); },
        .start = [this](Exchange& exchange) { Start(exchange); }};
    const PaceResult paced = Pace(schedule, start_ns, plan_.give_up_lag_ns, clock_, actions);
    if (paced.given_up) measurement_.End(clock_.NowNs());
    workers_.front()->ledger().RecordUnsent(paced.unsent);
    return paced.given_up;
  }

 private:
  void Start(Exchange& exchange) {
    exchange.draw = actions_.draw(random_);
    exchange.draw.check = Sampled(plan_, random_);
    workers_[exchange.number() % workers_.size()]->Send(exchange);
  }

  const RunPlan& plan_;
  Clock& clock_;
  const RunActions& actions_;
  Measurement& measurement_;
  const Workers workers_;
  ExchangePool& pool_;
  Random random_;
};

RunResult RunOpen(const RunPlan& plan, std::span<const std::unique_ptr<Sender>> senders,
                  Clock& clock, const RunActions& actions, int64_t start_ns,
                  Measurement& measurement, Workers workers, Observer& observer) {
  ExchangePool pool(plan, senders);
  std::atomic<bool> all_sent{false};
  bool given_up = false;  // read once the threads have ended
  Finish finish(workers.size() + 1);
  std::vector<std::jthread> threads;
  for (const auto& worker : workers) {
    threads.emplace_back([&finish, &all_sent, &pool, &runs = *worker] {
      runs.RunOpen(all_sent, [&pool](Exchange& exchange) { pool.Release(exchange); });
      finish.Arrive();
    });
  }
  threads.emplace_back([&] {
    given_up = Timekeeper(plan, clock, actions, measurement, workers, pool).Keep(start_ns);
    all_sent = true;
    finish.Arrive();
  });
  RunResult result = observer.Watch(finish);
  threads.clear();
  result.given_up = given_up;
  return result;
}

}  // namespace

double RunResult::error_share() const {
  if (total.requests == 0) return 1.0;
  return static_cast<double>(total.failures() + total.mismatches) /
         static_cast<double>(total.requests);
}

RunResult Run(const RunPlan& plan, std::span<const std::unique_ptr<Sender>> senders, Clock& clock,
              const RunActions& actions) {
  const int64_t start_ns = clock.NowNs();
  Measurement measurement(start_ns + plan.warmup_ns, plan.requests);
  std::vector<std::unique_ptr<Worker>> workers;
  for (const auto& sender : senders) {
    workers.push_back(std::make_unique<Worker>(plan, *sender, measurement, clock, actions,
                                               plan.seed + workers.size()));
  }
  Observer observer(plan, measurement, clock, actions, workers);
  return plan.open_loop()
             ? RunOpen(plan, senders, clock, actions, start_ns, measurement, workers, observer)
             : RunClosed(plan, workers, observer);
}

}  // namespace nibble::load
