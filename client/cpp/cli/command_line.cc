#include <ostream>

#include "client/cpp/cli/command.h"
#include "client/cpp/cli/flags.h"
#include "fmt/format.h"

namespace nibble::cli {
namespace {

constexpr int kUsageExit = 2;

std::string_view MessageText(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

void AddGlobalFlags(CLI::App& app, GlobalFlags& flags) {
  AddConnectionFlags(app, flags);
  app.add_option("--deadline-ms", flags.deadline_ms,
                 "Milliseconds that a call may take; 0: no limit. Default 60000; none for load, "
                 "upload and unload; 5000 for health")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--json", flags.json, "Print one JSON document on stdout");
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& arguments, const Io& io) {
  CLI::App app("Command line of a nibble server: weights, products, checks and load", "nibble");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", "nibble " NIBBLE_VERSION);
  GlobalFlags flags;
  AddGlobalFlags(app, flags);
  Commands commands;
  AddWeightCommands(app, commands);
  AddUploadCommands(app, commands);
  AddLinearCommands(app, commands);
  AddQuantCommands(app, commands);
  AddServingCommands(app, commands);
  for (const auto& command : commands) {
    command->app()->footer("Flags of every command (addresses, TLS, --json): nibble --help");
  }

  const auto usage = [&](std::string_view message) {
    io.err << ErrorLine("USAGE", message) << '\n';
    return kUsageExit;
  };
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::Success& success) {  // --help and --version
    return app.exit(success, io.out, io.err);
  } catch (const CLI::ParseError& error) {
    return usage(UsageMessage(app, error));
  }

  const Session session(io, flags);
  for (const auto& command : commands) {
    if (!command->app()->parsed()) continue;
    if (const std::string wrong = command->UsageError(); !wrong.empty()) return usage(wrong);
    const absl::StatusOr<int> code = command->Run(session);
    if (code.ok()) return *code;
    io.err << ErrorLine(absl::StatusCodeToString(code.status().code()), MessageText(code.status()))
           << '\n';
    return 1;
  }
  return usage("no command");
}

}  // namespace nibble::cli
