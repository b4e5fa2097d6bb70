// Runs the command line in this process against the fake server.
#ifndef NIBBLE_TESTS_UNIT_CLIENT_CLI_FIXTURE_H_
#define NIBBLE_TESTS_UNIT_CLIENT_CLI_FIXTURE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/cpp/cli/command.h"
#include "client/cpp/cli/tensor_file.h"
#include "nibble/client_tensor.h"
#include "tests/unit/client/fake_server.h"

namespace nibble::testing {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;

  cli::Json json() const { return cli::Json::parse(out); }
};

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/nibble_cli_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    server_.AddWeight("w", MakeWeight(7, 8));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // With the fake server's addresses.
  Outcome Run(std::vector<std::string> arguments) {
    for (const char* flag : {"--server", "--control"}) {
      arguments.push_back(flag);
      arguments.push_back(server_.address());
    }
    return RunBare(arguments);
  }
  static Outcome RunBare(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    Outcome outcome;
    outcome.code = cli::RunCommandLine(arguments, {out, err, false});
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string WriteText(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  // One tensor in a file of its own.
  std::string WriteTensor(const std::string& file, const std::string& name,
                          const std::vector<float>& values, std::initializer_list<int64_t> shape,
                          v1::DType dtype) const {
    const v1::Tensor tensor = client::TensorFromFloats(values, shape, dtype).value();
    EXPECT_TRUE(cli::WriteTensors(Path(file), {{name, tensor}}).ok());
    return Path(file);
  }
  // `count` values that look random and are always the same.
  static std::vector<float> Values(size_t count, float spread = 1.0f) {
    std::vector<float> values;
    uint32_t state = 12345;
    for (size_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      values.push_back((static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * spread);
    }
    return values;
  }

  FakeServer server_;
  std::string directory_;
};

}  // namespace nibble::testing

#endif  // NIBBLE_TESTS_UNIT_CLIENT_CLI_FIXTURE_H_
