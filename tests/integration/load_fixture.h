// Runs nibble-load in this process against a server process.
#ifndef NIBBLE_TESTS_INTEGRATION_LOAD_FIXTURE_H_
#define NIBBLE_TESTS_INTEGRATION_LOAD_FIXTURE_H_

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "client/cpp/load/program.h"
#include "tests/integration/fixture.h"

namespace nibble::testing {

struct LoadOutcome {
  int code = -1;
  std::string out;
  std::string err;

  // The first run of the report.
  cli::Json run() const { return cli::Json::parse(out)["runs"][0]; }
};

// A count-bounded run with a JSON report.
inline LoadOutcome RunLoad(const std::string& data_address, const std::string& control_address,
                           std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--server", data_address, "--control", control_address,
                                     "--warmup", "0", "--json", "-"});
  std::ostringstream out;
  std::ostringstream err;
  LoadOutcome outcome;
  outcome.code = load::RunProgram(arguments, {out, err, false});
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}
inline LoadOutcome RunLoad(const ServerProcess& server, std::vector<std::string> arguments) {
  return RunLoad(server.data_address(), server.control_address(), std::move(arguments));
}

// --model flags of these golden checkpoints.
inline std::vector<std::string> ModelFlags(const std::vector<std::string>& names) {
  std::vector<std::string> flags;
  for (const std::string& name : names) {
    flags.push_back("--model=" + name + "=" + GoldenRoot() + "/" + name);
  }
  return flags;
}

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_INTEGRATION_LOAD_FIXTURE_H_
