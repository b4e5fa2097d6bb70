#include "client/cpp/load/program.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <ostream>

#include "client/cpp/cli/flags.h"
#include "client/cpp/load/answer_check.h"
#include "client/cpp/load/operation.h"
#include "client/cpp/load/options.h"
#include "client/cpp/load/report.h"
#include "client/cpp/load/senders.h"
#include "client/cpp/load/shared_region.h"
#include "fmt/format.h"

namespace nibble::load {
namespace {

constexpr int kUsageExit = 2;
// Of the calls before the load, such as decoding a large layer.
constexpr std::chrono::minutes kSetupDeadline{10};
constexpr double kNsPerSecond = 1e9;
constexpr int kDefaultWindows = 5;
// Steps of --find-max end early when a request is sent so many times its target late.
constexpr double kHopelessLag = 10.0;
constexpr double kLeastHopelessLagMs = 200.0;
constexpr double kDrainTargets = 20.0;
constexpr double kLeastDrainMs = 1000.0;

int64_t Ns(double seconds) { return static_cast<int64_t>(seconds * kNsPerSecond); }

void Complain(const cli::Io& io, std::string_view code, std::string_view message) {
  io.err << fmt::format("nibble-load: {}: {}\n", code, message);
}

std::string_view TextOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

class Program {
 public:
  Program(const Options& options, const cli::Io& io) : options_(options), io_(io) {}

  absl::StatusOr<int> Run() {
    const cli::Session session(io_, options_.connection);
    absl::StatusOr<client::ClientOptions> connection = session.Options();
    if (!connection.ok()) return connection.status();
    connection_ = *std::move(connection);
    client::ClientOptions setup = connection_;
    setup.deadline = kSetupDeadline;  // --deadline-ms is of the load's requests
    auto client = client::Client::Create(setup);
    if (!client.ok()) return client.status();
    absl::StatusOr<Workload> workload =
        Workload::Create(options_.workload, **client, connection_.max_message_bytes);
    if (!workload.ok()) return workload.status();
    workload_.emplace(*std::move(workload));
    if (options_.check) {
      absl::StatusOr<AnswerCheck> check = AnswerCheck::Create(*workload_, **client);
      if (!check.ok()) return check.status();
      check_.emplace(*std::move(check));
    }
    report_.parameters = options_.ToJson();
    report_.layers = workload_->layers();

    const absl::Status measured = options_.find_max ? Search() : MeasureAll();
    if (!measured.ok()) return measured;
    if (absl::Status status = Write(); !status.ok()) return status;
    return Verdict();
  }

 private:
  RunPlan PlanOf(int64_t callers, double rate) const {
    RunPlan plan;
    plan.concurrency = callers;
    plan.rate = rate;
    plan.arrivals = options_.arrivals;
    plan.max_in_flight = options_.max_in_flight;
    plan.least_exchanges = options_.ConnectionsFor(callers);
    plan.seed = options_.workload.seed;
    plan.warmup_ns = Ns(options_.warmup_seconds);
    plan.measure_ns = Ns(options_.seconds);
    plan.longest_ns = Ns(std::max(options_.longest_seconds, options_.seconds));
    plan.requests = options_.requests;
    plan.window_ns = options_.window_seconds > 0.0 ? Ns(options_.window_seconds)
                                                   : Ns(options_.seconds) / kDefaultWindows;
    plan.stability_percent = options_.stability_percent;
    plan.drain_ns = options_.deadline_ms() * 1'000'000;
    plan.check_share = options_.check ? options_.check_share : 0.0;
    return plan;
  }

  absl::StatusOr<RunResult> RunOnce(const RunPlan& plan, bool echo, Entry& entry) {
    const int64_t callers = plan.concurrency;
    entry.callers = callers;
    entry.rate = plan.rate;
    entry.threads = options_.ThreadsFor(callers);
    entry.connections = options_.ConnectionsFor(callers);
    const bool stream = options_.transport == Transport::kStream && !echo;
    std::unique_ptr<SharedRegion> region;
    if (options_.shared_memory && !echo) {
      auto attached =
          SharedRegion::Attach(connection_, *workload_, callers > 0 ? callers : plan.max_in_flight);
      if (!attached.ok()) return attached.status();
      region = *std::move(attached);
    }
    const MatmulOperation matmul(*workload_, stream,
                                 region == nullptr ? nullptr : &region->tensors());
    const EchoOperation echoing(*workload_);
    const Operation& operation = echo ? static_cast<const Operation&>(echoing) : matmul;
    const int count = callers > 0 ? entry.threads : entry.threads - 1;
    std::vector<std::unique_ptr<Sender>> senders;
    for (int i = 0; i < count; ++i) {
      SenderOptions sender;
      sender.connection = connection_;
      sender.connections = entry.connections / count + (i < entry.connections % count ? 1 : 0);
      sender.deadline_ms = options_.deadline_ms();
      auto made = stream ? MakeStreamSender(sender, operation) : MakeUnarySender(sender, operation);
      if (!made.ok()) return made.status();
      senders.push_back(*std::move(made));
    }
    RunActions actions;
    actions.draw = [this](Random& random) { return workload_->Next(random); };
    actions.compare = [this, echo](const Draw& draw, const std::string& y) {
      return echo ? std::string() : check_->Compare(draw, y);
    };
    const std::string load =
        callers > 0 ? cli::Plural(callers, "caller") : fmt::format("{:.6g}/s", plan.rate);
    actions.on_window = [&](const Window& window, const Tally& so_far) {
      ShowProgress(
          fmt::format("{}{}: {}", echo ? "echo, " : "", load, load::TextOf(window, so_far)));
    };
    MonotonicClock clock;
    RunResult result = load::Run(plan, senders, clock, actions);
    ClearProgress();
    return result;
  }

  absl::StatusOr<Entry> Measure(const RunPlan& plan) {
    Entry entry;
    absl::StatusOr<RunResult> result = RunOnce(plan, false, entry);
    if (!result.ok()) return result.status();
    entry.result = *std::move(result);
    if (options_.against_echo) {
      RunPlan same = plan;
      same.check_share = 0.0;
      absl::StatusOr<RunResult> echo = RunOnce(same, true, entry);
      if (!echo.ok()) return echo.status();
      entry.echo = *std::move(echo);
    }
    return entry;
  }

  absl::Status MeasureAll() {
    std::vector<RunPlan> plans;
    for (const int64_t callers : options_.concurrencies) plans.push_back(PlanOf(callers, 0.0));
    for (const double rate : options_.rates) plans.push_back(PlanOf(0, rate));
    for (const RunPlan& plan : plans) {
      absl::StatusOr<Entry> entry = Measure(plan);
      if (!entry.ok()) return entry.status();
      report_.entries.push_back(*std::move(entry));
    }
    return absl::OkStatus();
  }

  // The first rate of a search: --rate, or half of what the callers of a closed loop reach.
  absl::StatusOr<double> FirstRate() {
    if (!options_.rates.empty()) return options_.rates.front();
    Entry entry;
    absl::StatusOr<RunResult> closed =
        RunOnce(PlanOf(options_.concurrencies.front(), 0.0), false, entry);
    if (!closed.ok()) return closed.status();
    if (closed->arrived.answers == 0) {
      const auto& errors = closed->total.errors;
      return absl::UnavailableError(fmt::format(
          "--find-max: no request was answered{}",
          errors.empty()
              ? ""
              : fmt::format("; {}: {}", errors.begin()->first, errors.begin()->second.message)));
    }
    return closed->answer_rate() / 2.0;
  }

  absl::Status Search() {
    const absl::StatusOr<double> first = FirstRate();
    if (!first.ok()) return first.status();
    FindMaxOptions search;
    search.p99_ms = options_.p99_ms;
    search.start_rate = *first;
    search.precision = options_.precision_percent / 100.0;
    search.max_steps = options_.max_steps;
    search.max_error_share = options_.max_error_share;
    std::optional<Entry> best;
    const auto probe = [&](double rate) -> absl::StatusOr<Probe> {
      RunPlan plan = PlanOf(0, rate);
      plan.give_up_lag_ns = Ns(std::max(kHopelessLag * options_.p99_ms, kLeastHopelessLagMs) / 1e3);
      plan.drain_ns = Ns(std::max(kDrainTargets * options_.p99_ms, kLeastDrainMs) / 1e3);
      // So many requests in flight are far beyond the target already: those that follow wait here,
      // where the step can be given up, and not in the server's queue.
      const double hopeless = rate * kHopelessLag * options_.p99_ms / 1e3;
      plan.max_in_flight =
          std::clamp<int64_t>(static_cast<int64_t>(hopeless), 64, options_.max_in_flight);
      Entry entry;
      absl::StatusOr<RunResult> result = RunOnce(plan, false, entry);
      if (!result.ok()) return result.status();
      mismatches_ += result->total.mismatches;
      Probe probed;
      probed.seconds = result->seconds;
      probed.offered_rate = result->offered_rate;
      probed.achieved_rate = result->answer_rate();
      probed.p99_ms = static_cast<double>(result->total.latency_ns.Quantile(0.99)) / 1e6;
      probed.error_share = result->error_share();
      probed.given_up = result->given_up;
      entry.result = *std::move(result);
      if (MissOf(probed, search).empty()) best = std::move(entry);
      return probed;
    };
    absl::StatusOr<FindMaxResult> found = FindMax(
        search, probe, [this](const FindMaxStep& step) { io_.err << load::TextOf(step) << '\n'; });
    if (!found.ok()) return found.status();
    report_.find_max = *std::move(found);
    if (best.has_value()) report_.entries.push_back(*std::move(best));
    return absl::OkStatus();
  }

  void ShowProgress(const std::string& line) {
    if (io_.err_is_terminal) {
      io_.err << "\r\033[K" << line << std::flush;
      open_line_ = true;
    } else if (options_.progress) {
      io_.err << line << std::endl;
    }
  }
  void ClearProgress() {
    if (open_line_) io_.err << "\r\033[K" << std::flush;
    open_line_ = false;
  }

  absl::Status WriteFile(const std::string& path, const std::string& content) const {
    if (path.empty()) return absl::OkStatus();
    if (path == "-") {
      io_.out << content << std::flush;
      return absl::OkStatus();
    }
    std::ofstream file(path, std::ios::binary);
    file << content;
    file.close();
    if (!file) return absl::InvalidArgumentError(fmt::format("cannot write the file {}", path));
    return absl::OkStatus();
  }

  absl::Status Write() const {
    if (options_.json != "-" && options_.csv != "-") io_.out << load::TextOf(report_) << std::flush;
    const std::string json =
        JsonOf(report_).dump(2, ' ', false, cli::Json::error_handler_t::replace) + "\n";
    if (absl::Status status = WriteFile(options_.json, json); !status.ok()) return status;
    return WriteFile(options_.csv, CsvOf(report_));
  }

  // The exit code.
  int Verdict() const {
    int64_t mismatches = mismatches_;
    double worst_share = 0.0;
    for (const Entry& entry : report_.entries) {
      for (const RunResult* result : {&entry.result, entry.echo ? &*entry.echo : nullptr}) {
        if (result == nullptr) continue;
        if (!options_.find_max) mismatches += result->total.mismatches;
        worst_share = std::max(worst_share, result->error_share());
      }
    }
    if (mismatches > 0) {
      Complain(io_, "MISMATCH", fmt::format("{} answers were wrong", mismatches));
      return 1;
    }
    if (worst_share > options_.max_error_share) {
      Complain(
          io_, "ERRORS",
          fmt::format("{:.3g} % of the requests of a run failed; --max-error-share is {:.3g} %",
                      100.0 * worst_share, 100.0 * options_.max_error_share));
      return 1;
    }
    return report_.find_max.has_value() && report_.find_max->rate == 0.0 ? 1 : 0;
  }

  const Options& options_;
  const cli::Io& io_;
  client::ClientOptions connection_;
  std::optional<Workload> workload_;
  std::optional<AnswerCheck> check_;
  Report report_;
  int64_t mismatches_ = 0;  // of the steps of a search
  bool open_line_ = false;
};

}  // namespace

int RunProgram(const std::vector<std::string>& arguments, const cli::Io& io) {
  Options options;
  CLI::App app("", "nibble-load");
  app.set_version_flag("--version", "nibble " NIBBLE_VERSION);
  AddFlags(app, options);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::Success& success) {  // --help and --version
    return app.exit(success, io.out, io.err);
  } catch (const CLI::ParseError& error) {
    Complain(io, "USAGE", cli::UsageMessage(app, error));
    return kUsageExit;
  }
  if (const absl::Status status = Complete(app, options); !status.ok()) {
    Complain(io, "USAGE", TextOf(status));
    return kUsageExit;
  }
  const absl::StatusOr<int> code = Program(options, io).Run();
  if (code.ok()) return *code;
  Complain(io, absl::StatusCodeToString(code.status().code()), TextOf(code.status()));
  return 1;
}

}  // namespace nibble::load
