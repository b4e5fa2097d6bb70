// A server that measures its kernels: its answers, its cache, and what it explains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/integration/fixture.h"

namespace nibble::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kModel[] = "gptq_falcon3_1b_int4";

class Autotune : public ::testing::Test {
 protected:
  Autotune()
      : cache_(::testing::TempDir() + "/autotune-" + std::to_string(getpid()) + ".json"),
        golden_(ReadGolden(kModel)) {}
  ~Autotune() override { std::remove(cache_.c_str()); }

  std::vector<std::string> Flags() const {
    return {"--weights-root=" + GoldenRoot(),
            "--model=" + golden_.name + "=" + GoldenRoot() + "/" + golden_.name,
            "--max-batch-rows=16",
            "--autotune",
            "--autotune-cache=" + cache_,
            "--drain-grace-ms=0"};
  }
  v1::ExplainResponse Explain(Stubs& stubs) const {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ExplainRequest request;
    request.set_weight(golden_.layer);
    v1::ExplainResponse response;
    const grpc::Status status = stubs.weights->Explain(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  std::string Answer(Stubs& stubs, int64_t rows) const {
    v1::MatmulResponse response;
    const grpc::Status status =
        Matmul(stubs, MatmulOf(golden_.layer, Rows(golden_.x, rows)), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.y().data();
  }
  static void ExpectMeasured(const v1::ExplainResponse& explained) {
    ASSERT_GE(explained.measured_size(), 5);  // 1, 2, 4, 8, 16
    for (const v1::MeasuredRows& rows : explained.measured()) {
      EXPECT_EQ(rows.times_size(), 2);
      for (const v1::MeasuredTime& time : rows.times()) EXPECT_GT(time.us(), 0);
    }
    int64_t next = 1;
    bool measured = false;
    for (const v1::KernelChoice& choice : explained.kernels()) {
      EXPECT_EQ(choice.m_begin(), next);
      EXPECT_GT(choice.predicted_begin_us(), 0);
      EXPECT_GE(choice.predicted_end_us(), choice.predicted_begin_us());
      measured = measured || choice.source() == v1::KERNEL_SOURCE_MEASURED;
      if (choice.m_begin() == 1) {
        EXPECT_GT(choice.measured_begin_us(), 0);
      }
      next = choice.m_end() + 1;
    }
    EXPECT_EQ(next, 4097);
    EXPECT_TRUE(measured);
    EXPECT_EQ(explained.kernels().rbegin()->source(), v1::KERNEL_SOURCE_TABLE);
  }

  const std::string cache_;
  const Golden golden_;
};

TEST_F(Autotune, MeasuresServesExplainsAndRemembers) {
  std::string first_answer;
  v1::ExplainResponse first;
  {
    ServerProcess server(Flags());
    Stubs stubs(server);
    ASSERT_TRUE(server.WaitForLog("event=autotuned")) << server.log();
    first = Explain(stubs);
    ExpectMeasured(first);
    first_answer = Answer(stubs, 5);
    server.Signal(SIGTERM);
    EXPECT_EQ(server.ExitCode(), 0);
  }
  const nlohmann::json cache = nlohmann::json::parse(std::ifstream(cache_));
  EXPECT_EQ(cache["devices"][0]["weights"][0]["weight"]["n"], golden_.n);
  {
    // On a CPU every kernel gives the same bits.
    ServerProcess plain({"--weights-root=" + GoldenRoot()});
    Stubs stubs(plain);
    ASSERT_TRUE(Load(stubs, golden_.name, golden_.name).ok());
    EXPECT_EQ(Answer(stubs, 5), first_answer);
    const v1::ExplainResponse explained = Explain(stubs);
    EXPECT_EQ(explained.measured_size(), 0);
    for (const v1::KernelChoice& choice : explained.kernels()) {
      EXPECT_EQ(choice.source(), v1::KERNEL_SOURCE_TABLE);
    }
  }
  ServerProcess server(Flags());
  Stubs stubs(server);
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  EXPECT_THAT(server.log(), HasSubstr("keys=1"));
  const v1::ExplainResponse second = Explain(stubs);
  EXPECT_EQ(second.SerializeAsString(), [&] {
    // The device's bandwidth is measured at every start.
    v1::ExplainResponse same = first;
    same.set_device_description(second.device_description());
    for (int i = 0; i < std::min(second.kernels_size(), same.kernels_size()); ++i) {
      same.mutable_kernels(i)->set_predicted_begin_us(second.kernels(i).predicted_begin_us());
      same.mutable_kernels(i)->set_predicted_end_us(second.kernels(i).predicted_end_us());
    }
    return same.SerializeAsString();
  }());
  EXPECT_EQ(Answer(stubs, 5), first_answer);
  EXPECT_THAT(server.log(), Not(HasSubstr("event=autotuned")));
}

TEST_F(Autotune, CallersGetTheirAnswersWhileItMeasures) {
  ServerProcess server(Flags());
  Stubs stubs(server);
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  const std::string one = Answer(stubs, 1);
  const std::string five = Answer(stubs, 5);
  for (int call = 0; call < 50; ++call) {
    EXPECT_EQ(Answer(stubs, 1), one);
    EXPECT_EQ(Answer(stubs, 5), five);
  }
  ASSERT_TRUE(server.WaitForLog("event=autotuned")) << server.log();
  EXPECT_EQ(Answer(stubs, 1), one);
  EXPECT_EQ(Answer(stubs, 5), five);
  v1::UnloadResponse unloaded;
  EXPECT_TRUE(Unload(stubs, golden_.name, &unloaded).ok());
  EXPECT_EQ(unloaded.weights(), 1);
}

TEST_F(Autotune, EndsWhileItMeasures) {
  std::vector<std::string> flags = Flags();
  flags.push_back("--autotune-budget-ms=3600000");
  flags.push_back("--max-batch-rows=1024");
  ServerProcess server(flags);
  Stubs stubs(server);
  ASSERT_TRUE(server.WaitForLog("event=serving"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.ExitCode(), 0);
}

TEST_F(Autotune, AFileThatIsNoCacheStopsNothing) {
  const std::string no_cache = "{\"format\":1,\"build\":[],\"devices\":{}}";
  std::ofstream(cache_) << no_cache;
  ServerProcess server(Flags());
  Stubs stubs(server);
  ASSERT_TRUE(server.WaitForLog("event=autotuned")) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("event=autotune_cache_refused"));
  ExpectMeasured(Explain(stubs));
  std::ostringstream left;
  left << std::ifstream(cache_).rdbuf();
  EXPECT_EQ(left.str(), no_cache) << "somebody else's";
}

TEST_F(Autotune, IsRefusedTogetherWithBatchInvariant) {
  ServerProcess server({"--autotune", "--batch-invariant"});
  EXPECT_EQ(server.ExitCode(), 2);
  EXPECT_THAT(server.log(), HasSubstr("--autotune: expected no batch_invariant with it"));
}

}  // namespace
}  // namespace nibble::testing
