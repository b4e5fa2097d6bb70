// A command of the command line: its flags, and what it does once they are parsed.
#ifndef NIBBLE_CLIENT_CLI_COMMAND_H_
#define NIBBLE_CLIENT_CLI_COMMAND_H_

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/cli/session.h"

namespace nibble::cli {

class Command {
 public:
  virtual ~Command() = default;
  // What is wrong with the flags as a whole, naming them; empty: nothing.
  virtual std::string UsageError() const { return ""; }
  // The exit code, or the error that ended the command.
  virtual absl::StatusOr<int> Run(const Session& session) = 0;

  CLI::App* app() const { return app_; }

 protected:
  Command(CLI::App& parent, const std::string& name, const std::string& description)
      : app_(parent.add_subcommand(name, description)) {}

 private:
  CLI::App* app_;
};

// One function a group of commands; each adds its commands to `parent`.
using Commands = std::vector<std::unique_ptr<Command>>;
void AddWeightCommands(CLI::App& parent, Commands& commands);   // list describe unload explain
void AddUploadCommands(CLI::App& parent, Commands& commands);   // load upload
void AddLinearCommands(CLI::App& parent, Commands& commands);   // matmul dequant
void AddQuantCommands(CLI::App& parent, Commands& commands);    // norm-quant silu-mul-quant
void AddServingCommands(CLI::App& parent, Commands& commands);  // health bench
void AddInspectCommand(CLI::App& parent, Commands& commands);   // inspect

// The whole program: parses `arguments` (without the program's name) and runs the command. 0: done;
// 1: an error of the server or the client, or a check that failed; 2: wrong usage.
int RunCommandLine(const std::vector<std::string>& arguments, const Io& io);

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_COMMAND_H_
