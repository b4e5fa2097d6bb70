// Shared by the tests of the configuration.
#ifndef NIBBLE_TESTS_UNIT_SERVER_LEAVES_CONFIG_SUPPORT_H_
#define NIBBLE_TESTS_UNIT_SERVER_LEAVES_CONFIG_SUPPORT_H_

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "server/config/config.h"

namespace nibble::server {

inline absl::StatusOr<Config> Parse(const std::vector<std::string>& flags) {
  std::vector<const char*> argv = {"nibbled"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  return ParseConfig(static_cast<int>(argv.size()), argv.data());
}

// The faults of a command line; empty when it is taken.
inline std::string FaultsOf(const std::vector<std::string>& flags) {
  const absl::StatusOr<Config> config = Parse(flags);
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return {config.status().message().data(), config.status().message().size()};
}

// A configuration file for as long as the test runs.
class ConfigFile {
 public:
  explicit ConfigFile(std::string_view text)
      : path_(::testing::TempDir() + "nibble_config_" + std::to_string(getpid()) + ".yaml") {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }
  std::string flag() const { return std::string("--config=").append(path_); }

 private:
  const std::string path_;
};

}  // namespace nibble::server

#endif  // NIBBLE_TESTS_UNIT_SERVER_LEAVES_CONFIG_SUPPORT_H_
