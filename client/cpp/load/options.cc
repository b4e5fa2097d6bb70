#include "client/cpp/load/options.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <thread>

#include "client/cpp/cli/flags.h"
#include "fmt/format.h"

namespace nibble::load {
namespace {

constexpr double kMostCallers = 65536;
constexpr double kLeastRate = 0.01;
constexpr double kMostRate = 1e7;
constexpr int kMostConnections = 4096;
constexpr int kMostThreads = 256;
// A connection a caller up to here, and what an open loop uses.
constexpr int64_t kAutomaticConnections = 64;
constexpr int kOpenLoopConnections = 16;
constexpr int64_t kCallersOfAStream = 8;

constexpr char kAbout[] =
    R"(Load generator of a nibble server: sends matmul requests with random activations and
reports rates, latencies and whether the answers were right.

A closed loop (--concurrency) has a fixed number of callers; each sends its next request when
the last one was answered. It finds what the server can do. An open loop (--rate) sends at times
fixed beforehand, as independent users would; latency counts from the time at which a request
was meant to be sent, so that a server that stalls cannot hide the requests it held up. It
finds what users see. Without either, one caller.)";

constexpr char kExamples[] = R"(Examples:
  nibble-load --weight m/model.layers.0.mlp.down_proj
      one caller, one row a request, five seconds
  nibble-load --weights 'm/*proj' --concurrency 1:64:x2 --rows 1,8,64 --check
      1, 2, 4, ... 64 callers over all matching layers, every answer checked
  nibble-load --weight W --rate 5000 --seconds 30 --json run.json --csv run.csv
      5000 requests a second at random times, every number kept in files
  nibble-load --weight W --find-max --p99-ms 5
      the highest rate at which 99 % of the requests are answered within 5 ms
  nibble-load --weight W --concurrency 16 --against-echo
      the same bytes through the server's Echo (nibbled --enable-echo): what the transport allows

What the table says: ANSWERS/s and ROWS/s are good answers within the measurement; percentiles
are of good answers, at most 0.4 % too high; ERRORS counts requests that failed, were not answered
within --deadline-ms or were answered wrongly; BATCH is the mean number of rows that the server ran together, QUEUE and
COMPUTE its own times. STABLE compares the last three windows; a run that is not stable is shown
as it is, and nothing measured is left out. A SEND LAG warning says that the generator itself was late.

Exit codes: 0 done; 1 errors above --max-error-share, a wrong answer, or no server; 2 wrong usage.)";

void AddWorkFlags(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "What is asked";
  app.add_option(
         "--weight", options.workload.weights,
         "Name of a layer; repeat it for several, of which each request takes one at random")
      ->group(kGroup)
      ->allow_extra_args(false);
  app.add_option("--weights", options.workload.pattern,
                 "Pattern over the names that the control plane lists, with * and ?; every ready "
                 "matrix that matches is used")
      ->group(kGroup);
  app.add_option("--rows", options.rows,
                 "Rows of a request: a number, a list to draw from (1,8,64), or geometric:MEAN")
      ->group(kGroup)
      ->capture_default_str();
  cli::AddNamedFlag(app, "--dtype", options.workload.dtype, cli::DTypeFlags(),
                    "Type of x. Default bf16", {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16})
      ->group(kGroup);
  cli::AddNamedFlag(app, "--output-dtype", options.workload.output_dtype, cli::DTypeFlags(),
                    "Type of y. Default: of x", {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16})
      ->group(kGroup);
  cli::AddNamedFlag(app, "--activation-quant", options.workload.activation_quant,
                    cli::QuantModeFlags(), "Quantize x for an FP8 weight. Default none")
      ->group(kGroup);
  app.add_option("--seed", options.workload.seed,
                 "Of activations, layers, row counts and arrivals: the same seed asks the same")
      ->group(kGroup)
      ->capture_default_str();
}

void AddLoadFlags(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "How much load";
  CLI::Option* concurrency =
      app.add_option("--concurrency", options.concurrency,
                     "Closed loop: callers. A number, a list (1,4,16) or a range (1:64:x2, "
                     "10:50:+10); one run each")
          ->group(kGroup);
  app.add_option("--rate", options.rate, "Open loop: requests a second; a list or a range as well")
      ->group(kGroup)
      ->excludes(concurrency);
  cli::AddNamedFlag(
      app, "--arrivals", options.arrivals,
      std::map<std::string, Arrivals>{{"constant", Arrivals::kConstant},
                                      {"poisson", Arrivals::kPoisson}},
      "Open loop: evenly spaced, or at random like independent users. Default poisson")
      ->group(kGroup);
  app.add_option(
         "--max-in-flight", options.max_in_flight,
         "Open loop: most requests in flight; those beyond wait here, which counts as latency")
      ->group(kGroup)
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  CLI::Option* find_max =
      app.add_flag("--find-max", options.find_max,
                   "Find the highest open-loop rate whose 99th percentile is within --p99-ms, by "
                   "bisection; a rate fails when it misses twice in a row; starts at --rate, or at "
                   "half of what --concurrency callers reach "
                   "(default 64)")
          ->group(kGroup);
  app.add_option("--p99-ms", options.p99_ms, "Target of --find-max, in milliseconds")
      ->group(kGroup)
      ->check(CLI::PositiveNumber)
      ->needs(find_max);
  app.add_option("--precision", options.precision_percent,
                 "--find-max ends when its bounds are this many percent apart")
      ->group(kGroup)
      ->check(CLI::Range(0.1, 100.0))
      ->capture_default_str();
  app.add_option("--max-steps", options.max_steps, "Most probes of --find-max")
      ->group(kGroup)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

void AddTransportFlags(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "How it travels (--server unix:PATH for a Unix socket)";
  cli::AddNamedFlag(app, "--transport", options.transport,
                    std::map<std::string, Transport>{{"unary", Transport::kUnary},
                                                     {"stream", Transport::kStream}},
                    "One call a request, or a MatmulStream a connection with several requests in "
                    "flight. Default unary")
      ->group(kGroup);
  app.add_flag("--shared-memory", options.shared_memory,
               "x and y lie in memory shared with a server on this host (nibbled "
               "--allow-shared-memory), and only their places travel")
      ->group(kGroup);
  app.add_option("--connections", options.connections,
                 "Connections. Default: one a caller up to 64; one for 8 callers with --transport "
                 "stream; 16 for an open loop")
      ->group(kGroup)
      ->check(CLI::Range(1, kMostConnections));
  app.add_option("--threads", options.threads,
                 "Most threads that send and receive; an open loop keeps time on one of them. "
                 "Default: a quarter of the cores, 2 to 8")
      ->group(kGroup)
      ->check(CLI::Range(1, kMostThreads));
  app.add_option("--deadline-ms", options.connection.deadline_ms,
                 "Milliseconds within which a request has to be answered. Default 30000")
      ->group(kGroup)
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--caller-token", options.connection.token_file,
         "File whose first line is the bearer token of these callers; the same as --token-file")
      ->group(kGroup);
}

void AddMeasureFlags(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "What is measured";
  app.add_option("--warmup", options.warmup_seconds, "Seconds of load before the measurement")
      ->group(kGroup)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  CLI::Option* seconds =
      app.add_option("--seconds", options.seconds, "Seconds of measurement, of every run and step")
          ->group(kGroup)
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
  app.add_option("--max-seconds", options.longest_seconds,
                 "Measure on past --seconds until it is stable, at most so long")
      ->group(kGroup)
      ->check(CLI::PositiveNumber);
  app.add_option("--window", options.window_seconds,
                 "Seconds of a window. Default: a fifth of --seconds")
      ->group(kGroup)
      ->check(CLI::PositiveNumber);
  app.add_option("--requests", options.requests,
                 "Measure this many requests, in place of --seconds")
      ->group(kGroup)
      ->check(CLI::PositiveNumber)
      ->excludes(seconds);
  app.add_option(
         "--stability", options.stability_percent,
         "Percent by which rate and p99 of the last three windows may differ in a stable run")
      ->group(kGroup)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI::Option* check =
      app.add_flag("--check", options.check,
                   "Compare answers with products computed here over the decoded weight, within "
                   "the derived tolerance")
          ->group(kGroup);
  app.add_option("--check-share", options.check_share, "Share of the answers that --check compares")
      ->group(kGroup)
      ->needs(check)
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  app.add_option("--max-error-share", options.max_error_share,
                 "Share of requests that may fail before the exit code says so")
      ->group(kGroup)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_flag("--against-echo", options.against_echo,
               "Run the same load with the same bytes against Echo (unary), and print the shares")
      ->group(kGroup);
}

void AddReportFlags(CLI::App& app, Options& options) {
  constexpr char kGroup[] = "Reports (- is stdout, in place of the table)";
  app.add_option("--json", options.json, "File for everything that was measured, and every flag")
      ->group(kGroup);
  app.add_option("--csv", options.csv, "File for one line a run, with a head")->group(kGroup);
  app.add_option("--label", options.label, "A name for the reports")->group(kGroup);
  app.add_flag("--progress", options.progress,
               "A line on stderr after every window; on a terminal there is one anyway")
      ->group(kGroup);
}

std::string_view NameOf(Arrivals arrivals) {
  return arrivals == Arrivals::kConstant ? "constant" : "poisson";
}

absl::Status Wrong(std::string_view message) {
  return absl::InvalidArgumentError(std::string(message));
}

}  // namespace

int Options::ThreadsFor(int64_t callers) const {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int wanted = threads > 0 ? threads : std::clamp(cores / 4, 2, 8);
  if (callers == 0) return std::min(wanted, ConnectionsFor(0) + 1);
  return static_cast<int>(std::min<int64_t>({wanted, callers, ConnectionsFor(callers)}));
}

int Options::ConnectionsFor(int64_t callers) const {
  if (callers == 0) return connections > 0 ? connections : kOpenLoopConnections;
  const int64_t of_callers = transport == Transport::kStream
                                 ? (callers + kCallersOfAStream - 1) / kCallersOfAStream
                                 : callers;
  const int64_t wanted =
      connections > 0 ? connections : std::min(of_callers, kAutomaticConnections);
  return static_cast<int>(std::min(wanted, callers));
}

cli::Json Options::ToJson() const {
  return {{"label", label},
          {"server", connection.server},
          {"weight", workload.weights},
          {"weights", workload.pattern},
          {"rows", rows},
          {"dtype", cli::FlagName(workload.dtype)},
          {"output_dtype", workload.output_dtype == v1::DTYPE_UNSPECIFIED
                               ? cli::FlagName(workload.dtype)
                               : cli::FlagName(workload.output_dtype)},
          {"activation_quant", cli::FlagName(workload.activation_quant)},
          {"seed", workload.seed},
          {"concurrency", concurrency},
          {"rate", rate},
          {"arrivals", NameOf(arrivals)},
          {"max_in_flight", max_in_flight},
          {"transport", transport == Transport::kStream ? "stream" : "unary"},
          {"shared_memory", shared_memory},
          {"connections", connections},
          {"threads", threads},
          {"deadline_ms", deadline_ms()},
          {"warmup_seconds", warmup_seconds},
          {"seconds", seconds},
          {"max_seconds", longest_seconds},
          {"window_seconds", window_seconds},
          {"requests", requests},
          {"stability_percent", stability_percent},
          {"check_share", check ? check_share : 0.0},
          {"max_error_share", max_error_share},
          {"against_echo", against_echo},
          {"find_max", find_max},
          {"p99_ms", p99_ms},
          {"precision_percent", precision_percent},
          {"max_steps", max_steps}};
}

void AddFlags(CLI::App& app, Options& options) {
  app.description(kAbout);
  app.footer(kExamples);
  AddWorkFlags(app, options);
  AddLoadFlags(app, options);
  AddTransportFlags(app, options);
  AddMeasureFlags(app, options);
  AddReportFlags(app, options);
  cli::AddConnectionFlags(app, options.connection);
}

absl::Status Complete(const CLI::App& app, Options& options) {
  if (options.workload.weights.empty() && options.workload.pattern.empty()) {
    return Wrong("--weight: expected the name of a layer, or --weights and a pattern");
  }
  if (app.count("--caller-token") > 0 && app.count("--token-file") > 0) {
    return Wrong("--caller-token: is the same flag as --token-file; expected one of the two");
  }
  absl::StatusOr<RowCounts> rows = RowCounts::Parse(options.rows);
  if (!rows.ok()) return rows.status();
  options.workload.rows = *std::move(rows);

  if (options.find_max && options.p99_ms == 0.0) {
    return Wrong("--find-max: needs a target, --p99-ms");
  }
  if (options.find_max && options.requests > 0) {
    return Wrong("--find-max: is measured by --seconds, not by --requests");
  }
  if (!options.rate.empty()) {
    auto rates = ParseNumbers("--rate", options.rate, kLeastRate, kMostRate);
    if (!rates.ok()) return rates.status();
    options.rates = *std::move(rates);
  } else {
    if (options.concurrency.empty()) options.concurrency = options.find_max ? "64" : "1";
    const auto callers = ParseNumbers("--concurrency", options.concurrency, 1, kMostCallers);
    if (!callers.ok()) return callers.status();
    for (const double count : *callers) {
      if (count != std::floor(count)) return Wrong("--concurrency: expected whole numbers");
      options.concurrencies.push_back(static_cast<int64_t>(count));
    }
  }
  if (options.find_max && options.rates.size() + options.concurrencies.size() > 1) {
    return Wrong("--find-max: starts from one --rate or one --concurrency, received several");
  }
  if ((options.find_max || !options.rates.empty()) && options.threads == 1) {
    return Wrong("--threads: an open loop needs at least 2, one of which keeps the time");
  }
  if (options.longest_seconds > 0.0 && options.longest_seconds < options.seconds) {
    return Wrong(fmt::format("--max-seconds: expected at least --seconds {:g}, received {:g}",
                             options.seconds, options.longest_seconds));
  }
  if (options.window_seconds > options.seconds) {
    return Wrong(fmt::format("--window: expected at most --seconds {:g}, received {:g}",
                             options.seconds, options.window_seconds));
  }
  if (options.json == "-" && options.csv == "-") {
    return Wrong("--csv: stdout is taken by --json");
  }
  return absl::OkStatus();
}

}  // namespace nibble::load
