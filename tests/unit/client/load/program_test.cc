// The whole program in this process, against the fake server.
#include "client/cpp/load/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "tests/unit/client/cli_fixture.h"

namespace nibble::testing {
namespace {

using ::testing::HasSubstr;

class LoadProgramTest : public CliTest {
 protected:
  // A short run over weight "w", bounded by requests.
  Outcome Load(std::vector<std::string> arguments, bool with_weight = true) {
    for (const char* flag : {"--server", "--control"}) {
      arguments.push_back(flag);
      arguments.push_back(server_.address());
    }
    if (with_weight) arguments.insert(arguments.end(), {"--weight", "w"});
    return LoadBare(arguments);
  }
  static Outcome LoadBare(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    Outcome outcome;
    outcome.code = load::RunProgram(arguments, {out, err, false});
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }
  static std::vector<std::string> Bounded(std::vector<std::string> more) {
    more.insert(more.end(), {"--requests", "40", "--warmup", "0", "--json", "-"});
    return more;
  }
};

TEST_F(LoadProgramTest, AClosedLoopOfUnaryCallsIsCheckedAndCounted) {
  const Outcome outcome = Load(Bounded({"--concurrency", "1,3", "--rows", "1,2", "--check"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const cli::Json report = outcome.json();
  ASSERT_EQ(report["runs"].size(), 2u);
  EXPECT_EQ(report["layers"][0]["n"], 7);
  EXPECT_EQ(report["layers"][0]["k"], 8);
  for (const cli::Json& run : report["runs"]) {
    EXPECT_EQ(run["requests"], 40);
    EXPECT_EQ(run["checked"], 40);
    EXPECT_EQ(run["mismatches"], 0);
    EXPECT_EQ(run["kernels"]["fake_gemm"], 40);
    EXPECT_EQ(run["queue_us"]["mean"], 7.0);
    EXPECT_EQ(run["compute_us"]["mean"], 11.0);
  }
  EXPECT_EQ(report["runs"][1]["callers"], 3);
}

TEST_F(LoadProgramTest, AnOpenLoopKeepsItsCount) {
  const Outcome outcome =
      Load(Bounded({"--rate", "4000", "--arrivals", "constant", "--check", "--connections", "2"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const cli::Json run = outcome.json()["runs"][0];
  EXPECT_EQ(run["requests"], 40);
  EXPECT_EQ(run["rate"], 4000.0);
  EXPECT_EQ(run["connections"], 2);
}

TEST_F(LoadProgramTest, AStreamHasSeveralRequestsInFlight) {
  // One thread sends over both connections, so that both are used however few the requests are.
  for (const auto& [load, threads] :
       {std::pair("--concurrency=6", "--threads=1"), std::pair("--rate=4000", "--threads=2")}) {
    const Outcome outcome =
        Load(Bounded({"--transport", "stream", load, threads, "--connections", "2", "--check"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["runs"][0]["checked"], 40);
  }
  EXPECT_EQ(server_.calls("MatmulStream"), 4);
}

TEST_F(LoadProgramTest, CheckFindsAWrongElement) {
  // 1/4 on the first element of each answer, whose tolerance is far below.
  server_.CorruptMatmul(0.25f);
  for (const char* transport : {"unary", "stream"}) {
    const Outcome outcome =
        Load(Bounded({"--transport", transport, "--check", "--output-dtype", "f32"}));
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("nibble-load: MISMATCH: 40 answers were wrong"));
    EXPECT_EQ(outcome.json()["runs"][0]["mismatches"], 40);
    EXPECT_THAT(outcome.json()["runs"][0]["first_mismatch"].get<std::string>(),
                HasSubstr("w: 1 of 7 elements out of tolerance; worst: row 0, column 0"));
  }
}

TEST_F(LoadProgramTest, NaNMustMeetNaN) {
  FakeWeight weight = MakeWeight(7, 8);
  weight.values[3 * 8 + 2] = std::numeric_limits<float>::quiet_NaN();
  server_.AddWeight("w", weight);
  EXPECT_EQ(Load(Bounded({"--check"})).code, 0);
  server_.CorruptMatmul(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(Load(Bounded({"--check"})).code, 1);
}

TEST_F(LoadProgramTest, APatternTakesEveryMatrixThatMatches) {
  server_.AddWeight("m/a_proj", MakeWeight(5, 8));
  server_.AddWeight("m/b_proj", MakeWeight(3, 4));
  const Outcome outcome = Load(Bounded({"--weights", "m/*_proj", "--check"}), false);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(outcome.json()["layers"].size(), 2u);
  EXPECT_EQ(outcome.json()["layers"][1]["k"], 4);
  const Outcome nothing = Load(Bounded({"--weights", "x*"}), false);
  EXPECT_EQ(nothing.code, 1);
  EXPECT_THAT(nothing.err, HasSubstr("nibble-load: NOT_FOUND: --weights: "));
}

TEST_F(LoadProgramTest, ErrorsDecideTheExitCode) {
  const std::vector<grpc::Status> refusals(
      4, grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full"));
  // The first call asks for the layer's size.
  const auto refuse = [&] {
    std::vector<grpc::Status> statuses = {grpc::Status::OK};
    statuses.insert(statuses.end(), refusals.begin(), refusals.end());
    server_.FailNext("Matmul", statuses);
  };
  refuse();
  const Outcome strict = Load(Bounded({}));
  EXPECT_EQ(strict.code, 1);
  EXPECT_THAT(strict.err, HasSubstr("nibble-load: ERRORS: 10 % of the requests of a run failed"));
  EXPECT_EQ(strict.json()["runs"][0]["errors"]["RESOURCE_EXHAUSTED"]["count"], 4);
  refuse();
  EXPECT_EQ(Load(Bounded({"--max-error-share", "0.1"})).code, 0);
}

TEST_F(LoadProgramTest, AStreamThatBreaksIsOpenedAgain) {
  server_.FailNext("MatmulStream", {grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining")});
  const Outcome outcome =
      Load(Bounded({"--transport", "stream", "--concurrency", "2", "--max-error-share", "0.5"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const cli::Json run = outcome.json()["runs"][0];
  EXPECT_EQ(run["requests"], 40);
  EXPECT_EQ(run["errors"]["UNAVAILABLE"]["message"], "draining");
  EXPECT_GT(run["answers_per_s"], 0.0);
  EXPECT_EQ(server_.calls("MatmulStream"), 2);
}

TEST_F(LoadProgramTest, EchoRunsTheSameLoad) {
  const Outcome outcome = Load(Bounded({"--against-echo", "--concurrency", "2"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const cli::Json run = outcome.json()["runs"][0];
  EXPECT_EQ(run["echo"]["requests"], 40);
  EXPECT_GT(run["over_echo"]["rate"], 0.0);
  EXPECT_EQ(server_.calls("Echo"), 40);
}

TEST_F(LoadProgramTest, SendsTheTokenOfItsCallers) {
  const std::string token = WriteText("token", "secret\n");
  ASSERT_EQ(Load(Bounded({"--caller-token", token})).code, 0);
  EXPECT_EQ(server_.authorization(), "Bearer secret");
}

TEST_F(LoadProgramTest, WritesItsReportsToFiles) {
  const Outcome outcome = Load({"--requests", "5", "--warmup", "0", "--json", Path("r.json"),
                                "--csv", Path("r.csv"), "--label", "first"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1 caller"));
  std::ifstream json(Path("r.json"));
  EXPECT_EQ(cli::Json::parse(json)["parameters"]["label"], "first");
  std::ifstream csv(Path("r.csv"));
  std::string head;
  std::getline(csv, head);
  EXPECT_THAT(head, HasSubstr("flag_label,"));
  EXPECT_EQ(Load({"--requests", "5", "--warmup", "0", "--json", Path("no/r.json")}).code, 1);
}

TEST_F(LoadProgramTest, FindMaxShowsItsStepsAndItsBestRun) {
  const Outcome outcome = Load({"--find-max", "--p99-ms", "20000", "--rate", "200", "--seconds",
                                "0.05", "--warmup", "0", "--max-steps", "2", "--json", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_EQ(outcome.json()["find_max"]["rate"], 400.0);
  EXPECT_EQ(outcome.json()["runs"][0]["rate"], 400.0);
  EXPECT_THAT(outcome.err, HasSubstr("200/s: "));
}

TEST_F(LoadProgramTest, FindMaxFailsWhereNoRateIsGoodEnough) {
  const Outcome outcome = Load({"--find-max", "--p99-ms", "0.000001", "--rate", "500", "--seconds",
                                "0.05", "--warmup", "0", "--max-steps", "2"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("no rate has its p99 within 1e-06 ms"));
}

TEST_F(LoadProgramTest, SaysThatThereIsNoSuchWeight) {
  const Outcome outcome = Load(Bounded({"--weight", "nothing"}), false);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("nibble-load: NOT_FOUND: "));
  EXPECT_EQ(outcome.out, "");
}

TEST_F(LoadProgramTest, UsageErrorsNameTheFlag) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{}, "--weight: expected"},
      {{"--weight", "w", "--rows", "0"}, "--rows: expected"},
      {{"--weight", "w", "--concurrency", "1.5"}, "--concurrency: expected whole"},
      {{"--weight", "w", "--concurrency", "0"}, "--concurrency: expected numbers"},
      {{"--weight", "w", "--rate", "-1"}, "--rate: expected numbers"},
      {{"--weight", "w", "--rate", "10", "--concurrency", "2"}, " excludes "},
      {{"--weight", "w", "--find-max"}, "--find-max: needs a target"},
      {{"--weight", "w", "--p99-ms", "5"}, "--find-max"},
      {{"--weight", "w", "--rate", "10", "--threads", "1"}, "--threads: an open loop"},
      {{"--weight", "w", "--max-seconds", "1"}, "--max-seconds: expected at least"},
      {{"--weight", "w", "--window", "9"}, "--window: expected at most"},
      {{"--weight", "w", "--json", "-", "--csv", "-"}, "--csv: stdout is taken"},
      {{"--weight", "w", "--dtype", "i8"}, "--dtype: expected one of bf16, f16, f32"},
      {{"--weight", "w", "--concurency", "4"},
       "--concurency: unknown flag; the nearest is --concurrency"},
      {{"--weight", "w", "extra"}, "extra"},
  };
  for (const auto& [arguments, message] : wrong) {
    const Outcome outcome = LoadBare(arguments);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr("nibble-load: USAGE: "));
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST_F(LoadProgramTest, HelpExplainsTheTwoLoopsAndTheExitCodes) {
  const Outcome outcome = LoadBare({"--help"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* part : {"closed loop", "open loop", "--concurrency", "--rate", "--check",
                           "Examples:", "Exit codes:"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
}

}  // namespace
}  // namespace nibble::testing
