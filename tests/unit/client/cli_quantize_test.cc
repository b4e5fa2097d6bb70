// nibble quantize, and the flags of load and upload that quantize.
#include <gmock/gmock.h>
#include <signal.h>

#include <ostream>
#include <sstream>
#include <streambuf>
#include <utility>

#include "server/checkpoint/safetensors.h"
#include "tests/unit/client/cli_fixture.h"

namespace nibble::testing {
namespace {

using ::testing::HasSubstr;

class CliQuantizeTest : public CliTest {
 protected:
  // A checkpoint with one linear layer [6, 64] and a head.
  void WriteModel() const {
    std::filesystem::create_directory(Path("in"));
    const std::vector<float> values = Values(6 * 64, 0.1f);
    const auto bytes = std::as_bytes(std::span(values));
    ASSERT_TRUE(
        checkpoint::WriteSafetensors(
            Path("in/model.safetensors"),
            {{"up.weight", "F32", {6, 64}, bytes}, {"lm_head.weight", "F32", {6, 64}, bytes}}, {})
            .ok());
    WriteText("in/config.json", "{\"model_type\": \"x\"}");
  }
};

TEST_F(CliQuantizeTest, WritesACheckpointAndAReport) {
  WriteModel();
  const Outcome outcome = RunBare({"quantize", Path("in"), Path("out"), "--format", "nf4",
                                   "--nested", "--report", Path("report.json")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("LAYER"));
  EXPECT_THAT(outcome.out, HasSubstr("up     nf4 6x64 block 64 nested"));
  EXPECT_THAT(outcome.out, HasSubstr("1 layer quantized, 1 tensor copied"));
  EXPECT_TRUE(std::filesystem::exists(Path("out/model.safetensors")));
  std::ifstream file(Path("report.json"));
  const cli::Json report = cli::Json::parse(file);
  EXPECT_EQ(report["format"], "nf4+block=64+nested");
  EXPECT_EQ(report["layers"][0]["name"], "up");
  EXPECT_GT(report["layers"][0]["relative_error"], 0.01);
  EXPECT_LT(report["layers"][0]["max_error"], 0.02);
  EXPECT_EQ(report["kept"][0], "lm_head");
}

// Raises a signal when it is first written to.
class RaisingBuffer final : public std::streambuf {
 public:
  explicit RaisingBuffer(int signal) : signal_(signal) {}

 protected:
  int overflow(int character) override {
    if (signal_ != 0) raise(std::exchange(signal_, 0));
    return character;
  }

 private:
  int signal_;
};

TEST_F(CliQuantizeTest, ASignalLeavesNothingOfTheOutput) {
  WriteModel();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    RaisingBuffer buffer(signal);  // at the first line of progress
    std::ostream err(&buffer);
    std::ostringstream out;
    EXPECT_EQ(cli::RunCommandLine({"quantize", Path("in"), Path("out"), "--format", "nf4"},
                                  {out, err, false}),
              1);
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(Path("."))) {
      left.push_back(entry.path().filename().string());
    }
    EXPECT_THAT(left, ::testing::ElementsAre("in"));
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << "as it was before";
  }
  EXPECT_EQ(RunBare({"quantize", Path("in"), Path("out"), "--format", "nf4"}).code, 0);
}

TEST_F(CliQuantizeTest, TakesFormatsLayersAndForce) {
  WriteModel();
  Outcome outcome = RunBare({"quantize", Path("in"), Path("out"), "--format", "int4",
                             "--group-size", "32", "--zero-points", "--search-scale", "--include",
                             "lm_head", "--include", "u*", "--exclude", "nothing", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json()["format"], "int4+group=32+zero-points+search");
  EXPECT_EQ(outcome.json()["layers"].size(), 2u);
  outcome = RunBare({"quantize", Path("in"), Path("out"), "--format", "fp8"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("ALREADY_EXISTS"));
  outcome = RunBare({"quantize", Path("in"), Path("out"), "--format", "fp8", "--scale-layout",
                     "channel", "--force", "--threads", "1", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json()["format"], "fp8+channel");
}

TEST_F(CliQuantizeTest, WrongUsageIsSaid) {
  const std::vector<std::vector<std::string>> wrong = {
      {"quantize", "in", "out"},
      {"quantize", "in", "out", "--format", "dense"},
      {"quantize", "in", "--format", "nf4"},
      {"quantize", "in", "out", "--format", "nf4", "--threads", "0"},
      {"load", "m", "dir", "--include", "*"},
      {"load", "m", "dir", "--exclude", "*"},
      {"upload", "m", "--matrix", "f", "--format", "nf4", "--include", "*"},
      {"upload", "m", "--checkpoint", "f", "--exclude", "*"}};
  for (const auto& arguments : wrong) {
    const Outcome outcome = RunBare(arguments);
    EXPECT_EQ(outcome.code, 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr("nibble: USAGE: "));
  }
}

TEST_F(CliQuantizeTest, LoadAsksTheServerToQuantize) {
  EXPECT_EQ(Run({"load", "m", "dir"}).code, 0);
  EXPECT_EQ(Run({"load", "m", "dir", "--format", "fp4", "--block-size", "128", "--exclude", "*.k",
                 "--exclude", "*.v"})
                .code,
            0);
  const auto loads = server_.loads();
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_FALSE(loads[0].has_quantize());
  EXPECT_EQ(loads[1].quantize().format().format(), v1::WEIGHT_FORMAT_FP4);
  EXPECT_EQ(loads[1].quantize().format().block_size(), 128);
  ASSERT_EQ(loads[1].quantize().exclude_size(), 2);
  EXPECT_EQ(loads[1].quantize().exclude(1), "*.v");
}

TEST_F(CliQuantizeTest, UploadAsksTheServerToQuantize) {
  const std::string file = WriteText("model.safetensors", "x");
  EXPECT_EQ(Run({"upload", "m", "--checkpoint", file}).code, 0);
  EXPECT_EQ(Run({"upload", "m", "--checkpoint", file, "--format", "int4", "--search-scale"}).code,
            0);
  const auto uploads = server_.uploads();
  ASSERT_EQ(uploads.size(), 2u);
  EXPECT_FALSE(uploads[0].header.checkpoint().has_quantize());
  EXPECT_TRUE(uploads[1].header.checkpoint().quantize().format().search_scale());
}

}  // namespace
}  // namespace nibble::testing
