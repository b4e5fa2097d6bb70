// The command line and the configuration file. Lines up to one of "---" are arguments, the rest is
// the file. What is accepted is printed and must read back the same.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/config/config.h"
#include "tests/fuzz/memory_limit.h"
#include "tests/fuzz/mutate_lines.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/scratch_files.h"

namespace nibble::fuzz {
namespace {

absl::StatusOr<server::Config> Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"nibbled"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return server::ParseConfig(static_cast<int>(argv.size()), argv.data());
}

struct Input {
  std::vector<std::string> arguments;
  bool has_file = false;
  std::string_view file;
};

Input Split(std::string_view text) {
  Input input;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line == "---") {
      input.has_file = true;
      input.file = text;
      break;
    }
    // Other files than the input's are not to be read.
    if (line.find("config") == std::string_view::npos) input.arguments.emplace_back(line);
  }
  return input;
}

void CheckReadsBack(const server::Config& config, ScratchFiles* files) {
  const std::string text = server::ToYaml(config);
  files->Write("printed.yaml", text);
  const auto again = Parse({"--config=" + files->PathOf("printed.yaml")});
  Require(again.ok(), "a configuration that was printed can be read");
  Require(server::ToYaml(*again) == text, "a configuration that was printed reads the same");
}

}  // namespace
}  // namespace nibble::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::fuzz;
  static ScratchFiles files;
  Input input = Split({reinterpret_cast<const char*>(data), size});
  if (input.has_file) {
    files.Write("input.yaml", input.file);
    input.arguments.push_back("--config=" + files.PathOf("input.yaml"));
  }
  const MemoryLimit limit(static_cast<int64_t>(size));
  const auto config = Parse(input.arguments);
  if (!config.ok()) {
    Require(!config.status().message().empty(), "an error has a message");
  } else if (!config->help && !config->version) {
    CheckReadsBack(*config, &files);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return nibble::fuzz::MutateLines(data, size, max_size, seed);
}
