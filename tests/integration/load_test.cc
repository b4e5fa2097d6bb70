// nibble-load against the real server, in each of its modes, every answer checked; and proof that
// the check sees what it is there for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "client/cpp/load/answer_check.h"
#include "client/cpp/load/run.h"
#include "client/cpp/load/senders.h"
#include "tests/integration/load_fixture.h"

namespace nibble::testing {
namespace {

using ::testing::HasSubstr;

class LoadTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServerProcess(
        ModelFlags({"bnb_llama_1b_nf4", "bnb_llama_1b_fp4", "gptq_falcon3_1b_int4",
                    "bnb_bias_outliers", "fp8_llama_dynamic_per_channel"}));
    ASSERT_TRUE(server_->WaitForLog("event=serving")) << server_->log();
  }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }

  // 300 requests over every layer of the server unless a weight is named, all answers checked.
  static void ExpectAllRight(std::vector<std::string> arguments, bool every_layer = true) {
    arguments.insert(arguments.end(), {"--requests", "300", "--check"});
    if (every_layer) arguments.insert(arguments.end(), {"--weights", "*_proj"});
    const LoadOutcome outcome = RunLoad(*server_, arguments);
    ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
    const cli::Json run = outcome.run();
    EXPECT_EQ(run["requests"], 300);
    EXPECT_EQ(run["checked"], 300);
    EXPECT_EQ(run["mismatches"], 0);
    EXPECT_EQ(run["error_share"], 0.0);
    EXPECT_GT(run["latency_us"]["p50"], 0.0);
    EXPECT_GE(run["batch_rows"]["mean"], 1.0);
  }

  static ServerProcess* server_;
};

ServerProcess* LoadTest::server_ = nullptr;

TEST_F(LoadTest, ClosedLoopOfUnaryCalls) {
  ExpectAllRight({"--concurrency", "8", "--rows", "1,5,40"});
}

TEST_F(LoadTest, OpenLoopOfUnaryCalls) {
  ExpectAllRight({"--rate", "1500", "--rows", "geometric:3", "--connections", "3"});
}

TEST_F(LoadTest, ClosedLoopOfStreams) {
  ExpectAllRight({"--transport", "stream", "--concurrency", "12", "--connections", "3"});
}

TEST_F(LoadTest, OpenLoopOfStreams) {
  ExpectAllRight({"--transport", "stream", "--rate", "1500", "--arrivals", "constant"});
}

TEST_F(LoadTest, OtherTypesOfInputAndOutput) {
  ExpectAllRight({"--dtype", "f32", "--concurrency", "2"});
  ExpectAllRight({"--dtype", "f16", "--output-dtype", "f32", "--concurrency", "2"});
}

TEST_F(LoadTest, QuantizedActivations) {
  const std::string layer = "fp8_llama_dynamic_per_channel/model.layers.0.mlp.down_proj";
  for (const char* mode : {"per-token", "per-group"}) {
    ExpectAllRight({"--weight", layer, "--activation-quant", mode, "--concurrency", "2"}, false);
  }
}

TEST_F(LoadTest, AUnixSocket) {
  std::string directory = std::filesystem::temp_directory_path() / "nibble-load-test-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string address = "unix:" + directory + "/data";
  {
    std::vector<std::string> flags = ModelFlags({"bnb_llama_1b_nf4"});
    flags.push_back("--listen=" + address);
    ServerProcess server(flags);
    ASSERT_TRUE(server.WaitForLog("event=serving")) << server.log();
    const LoadOutcome outcome =
        RunLoad(address, server.control_address(),
                {"--weights", "*", "--requests", "100", "--concurrency", "4", "--check"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.run()["checked"], 100);
  }
  std::filesystem::remove_all(directory);
}

TEST_F(LoadTest, CallersNeedTheirToken) {
  std::string directory = std::filesystem::temp_directory_path() / "nibble-load-test-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string tokens = directory + "/tokens";
  std::ofstream(tokens) << "one\n";
  std::vector<std::string> flags = ModelFlags({"bnb_llama_1b_nf4"});
  flags.push_back("--data-token-file=" + tokens);
  ServerProcess server(flags);
  ASSERT_TRUE(server.WaitForLog("event=serving")) << server.log();
  const std::vector<std::string> load = {"--weights", "*", "--requests", "20"};
  std::vector<std::string> with_token = load;
  with_token.insert(with_token.end(), {"--caller-token", tokens});
  EXPECT_EQ(RunLoad(server, with_token).code, 0);
  const LoadOutcome refused = RunLoad(server, load);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("nibble-load: UNAUTHENTICATED: "));
  std::filesystem::remove_all(directory);
}

TEST_F(LoadTest, FindMaxEndsWithARate) {
  // A target that any machine meets, so that the number of steps alone ends the search.
  const LoadOutcome outcome =
      RunLoad(*server_, {"--weights", "*nf4/*", "--find-max", "--p99-ms", "20000", "--rate", "100",
                         "--seconds", "0.1", "--max-steps", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  const cli::Json found = cli::Json::parse(outcome.out)["find_max"];
  EXPECT_EQ(found["rate"], 200.0);
  EXPECT_EQ(found["steps"].size(), 2u);
}

TEST_F(LoadTest, AQueueThatIsFullShowsInTheErrors) {
  std::vector<std::string> flags = ModelFlags({"bnb_llama_1b_nf4"});
  flags.push_back("--max-queue-rows=4");
  flags.push_back("--max-batch-rows=4");
  ServerProcess server(flags);
  ASSERT_TRUE(server.WaitForLog("event=serving")) << server.log();
  const LoadOutcome outcome =
      RunLoad(server, {"--weights", "*", "--requests", "50", "--rows", "5", "--concurrency", "4"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.run()["errors"]["RESOURCE_EXHAUSTED"]["count"], 50);
}

// The two layers are the same matrix, quantized to two 4-bit tables: every answer is plausible, and
// wrong.
TEST_F(LoadTest, TheCheckSeesAnotherWeight) {
  auto client = client::Client::Create(
      {.address = server_->data_address(), .control_address = server_->control_address()});
  ASSERT_TRUE(client.ok());
  const auto workload_of = [&](const std::string& model) {
    load::WorkloadOptions options;
    options.weights = {model + "/model.layers.0.mlp.down_proj"};
    options.rows = load::RowCounts::Parse("1,3").value();
    return load::Workload::Create(options, **client, int64_t{64} << 20).value();
  };
  const load::Workload nf4 = workload_of("bnb_llama_1b_nf4");
  const load::Workload fp4 = workload_of("bnb_llama_1b_fp4");
  ASSERT_EQ(nf4.layers()[0].n, fp4.layers()[0].n);
  ASSERT_EQ(nf4.layers()[0].k, fp4.layers()[0].k);
  const load::AnswerCheck check = load::AnswerCheck::Create(nf4, **client).value();

  load::RunPlan plan;
  plan.concurrency = 4;
  plan.requests = 200;
  plan.check_share = 1.0;
  load::RunActions actions;
  actions.compare = [&](const load::Draw& draw, const std::string& y) {
    return check.Compare(draw, y);
  };
  load::MonotonicClock clock;
  for (const load::Workload* workload : {&nf4, &fp4}) {
    const load::MatmulOperation operation(*workload, false, nullptr);
    load::SenderOptions sender;
    sender.connection.address = server_->data_address();
    std::vector<std::unique_ptr<load::Sender>> senders;
    senders.push_back(load::MakeUnarySender(sender, operation).value());
    actions.draw = [&](load::Random& random) { return workload->Next(random); };
    const load::RunResult result = load::Run(plan, senders, clock, actions);
    EXPECT_EQ(result.total.checked, 200);
    EXPECT_EQ(result.total.mismatches, workload == &nf4 ? 0 : 200);
    if (workload == &fp4) {
      EXPECT_THAT(result.total.first_mismatch, HasSubstr("elements out of tolerance; worst: row"));
    }
  }
}

// A row that was mixed up with another one of the same request is as plausible as can be.
TEST_F(LoadTest, TheCheckSeesAnotherRow) {
  auto client = client::Client::Create(
      {.address = server_->data_address(), .control_address = server_->control_address()});
  ASSERT_TRUE(client.ok());
  load::WorkloadOptions options;
  options.weights = {"bnb_llama_1b_nf4/model.layers.0.mlp.down_proj"};
  options.rows = load::RowCounts::Parse("2").value();
  const load::Workload workload =
      load::Workload::Create(options, **client, int64_t{64} << 20).value();
  const load::AnswerCheck check = load::AnswerCheck::Create(workload, **client).value();
  const load::Draw draw{.layer = 0, .rows = 2, .first_row = 3};
  const std::span<const char> x = workload.InputOf(draw);
  v1::MatmulRequest request;
  request.set_weight(workload.layers()[0].name);
  *request.mutable_x() =
      MakeTensor(v1::DTYPE_BF16, {2, workload.layers()[0].k}, {x.data(), x.size()});
  const std::string y = (*client)->Matmul(request).value().y().data();
  EXPECT_EQ(check.Compare(draw, y), "");
  const std::string swapped = y.substr(y.size() / 2) + y.substr(0, y.size() / 2);
  EXPECT_THAT(check.Compare(draw, swapped), HasSubstr("out of tolerance"));
  EXPECT_THAT(check.Compare(draw, y.substr(2)), HasSubstr("y has "));
}

}  // namespace
}  // namespace nibble::testing
