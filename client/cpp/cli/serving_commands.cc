#include <ostream>

#include "client/cpp/cli/bench.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/cli/flags.h"
#include "fmt/format.h"

namespace nibble::cli {
namespace {

constexpr std::chrono::milliseconds kHealthDeadline{5000};

std::string_view StatusName(client::ServingStatus status) {
  switch (status) {
    case client::ServingStatus::kServing:
      return "SERVING";
    case client::ServingStatus::kNotServing:
      return "NOT_SERVING";
    case client::ServingStatus::kServiceUnknown:
      return "SERVICE_UNKNOWN";
    default:
      return "UNKNOWN";
  }
}

class HealthCommand final : public Command {
 public:
  explicit HealthCommand(CLI::App& parent)
      : Command(parent, "health",
                "Ask --server for its health; exit 0 only when it is SERVING. The control plane "
                "answers too: give its address to --server") {
    app()->add_option("--service", service_, "Full name of a service. Default: the whole server");
    CLI::Option* watch =
        app()->add_flag("--watch", watch_,
                        "Print every change until the server ends it or --deadline-ms passes; exit "
                        "0 when the last one was SERVING");
    app()
        ->add_flag(
            "--wait", wait_,
            "Wait until it is SERVING, connecting as long as it takes or --deadline-ms allows")
        ->excludes(watch);
  }

  absl::StatusOr<int> Run(const Session& session) override {
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    client::CallOptions call = session.Call();
    if (watch_ || wait_) return Watch(session, **client, call);
    if (!call.deadline) call.deadline = kHealthDeadline;
    const auto status = (*client)->CheckHealth(service_, client::Plane::kData, call);
    if (!status.ok()) return status.status();
    Show(session, *status);
    return *status == client::ServingStatus::kServing ? 0 : 1;
  }

 private:
  void Show(const Session& session, client::ServingStatus status) const {
    session.Print({{"service", service_}, {"status", StatusName(status)}},
                  fmt::format("{}\n", StatusName(status)));
  }

  absl::StatusOr<int> Watch(const Session& session, client::Client& client,
                            client::CallOptions call) const {
    call.wait_for_ready = wait_;
    client::ServingStatus last = client::ServingStatus::kUnknown;
    const absl::Status ended = client.WatchHealth(
        service_,
        [&](client::ServingStatus status) {
          last = status;
          const bool found = wait_ && status == client::ServingStatus::kServing;
          if (watch_ || found) Show(session, status);
          return !found;
        },
        client::Plane::kData, call);
    if (last == client::ServingStatus::kServing) return 0;
    if (!ended.ok()) return ended;
    return 1;
  }

  std::string service_;
  bool watch_ = false;
  bool wait_ = false;
};

class BenchCommand final : public Command {
 public:
  explicit BenchCommand(CLI::App& parent)
      : Command(parent, "bench",
                "Closed loop of matmul calls with random activations; prints rates and latencies") {
    CLI::App& flags = *app();
    flags.add_option("--weight", bench_.weight, "Name of the weight")->required();
    flags.add_option("--rows", bench_.rows, "Rows of each call")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    flags.add_option("--concurrency", bench_.concurrency, "Callers, each with its own connection")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    CLI::Option* seconds = flags.add_option("--seconds", bench_.seconds, "How long")
                               ->check(CLI::PositiveNumber)
                               ->capture_default_str();
    flags.add_option("--requests", bench_.requests, "How many calls, in place of --seconds")
        ->check(CLI::PositiveNumber)
        ->excludes(seconds);
    flags.add_option("--k", bench_.k, "Columns of x. Default: asked of the control plane")
        ->check(CLI::PositiveNumber);
    AddNamedFlag(flags, "--dtype", bench_.dtype, DTypeFlags(), "Type of x. Default bf16",
                 {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16});
    AddNamedFlag(flags, "--output-dtype", bench_.output_dtype, DTypeFlags(),
                 "Type of y. Default: of x", {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16});
    AddNamedFlag(flags, "--activation-quant", bench_.activation_quant, QuantModeFlags(),
                 "Quantize x for an FP8 weight. Default none");
  }

  absl::StatusOr<int> Run(const Session& session) override {
    const auto options = session.Options();
    if (!options.ok()) return options.status();
    if (bench_.k == 0) {
      auto client = session.Connect();
      if (!client.ok()) return client.status();
      v1::DescribeRequest describe;
      describe.set_name(bench_.weight);
      const auto described = (*client)->Describe(describe, session.Call());
      if (!described.ok()) return described.status();
      bench_.k = described->summary().k();
    }
    if (bench_.k > options->max_message_bytes / bench_.rows / client::DTypeBytes(bench_.dtype)) {
      return absl::InvalidArgumentError(
          fmt::format("--rows: {} rows of {} values are over --max-message-bytes {}", bench_.rows,
                      bench_.k, options->max_message_bytes));
    }
    const auto result = RunBench(bench_, *options, session.io());
    if (!result.ok()) return result.status();
    Json document = {{"weight", bench_.weight},
                     {"rows", bench_.rows},
                     {"k", bench_.k},
                     {"concurrency", bench_.concurrency}};
    document.update(result->ToJson());
    session.Print(document, result->Text());
    return result->calls() > 0 ? 0 : 1;
  }

 private:
  BenchOptions bench_;
};

}  // namespace

void AddServingCommands(CLI::App& parent, Commands& commands) {
  commands.push_back(std::make_unique<HealthCommand>(parent));
  commands.push_back(std::make_unique<BenchCommand>(parent));
}

}  // namespace nibble::cli
