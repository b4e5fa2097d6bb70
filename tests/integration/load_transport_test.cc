// nibble-load over shared memory and against Echo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/load_fixture.h"

namespace nibble::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kModels = {"bnb_llama_1b_nf4", "gptq_falcon3_1b_int4"};

class LoadTransportTest : public ::testing::Test {
 protected:
  LoadTransportTest() : server_(Flags()) {}
  void SetUp() override { ASSERT_TRUE(server_.WaitForLog("event=serving")) << server_.log(); }

  static std::vector<std::string> Flags() {
    std::vector<std::string> flags = ModelFlags(kModels);
    flags.emplace_back("--enable-echo");
    flags.emplace_back("--allow-shared-memory");
    return flags;
  }

  ServerProcess server_;
};

TEST_F(LoadTransportTest, SharedMemoryCarriesEveryTensor) {
  for (const char* transport : {"unary", "stream"}) {
    for (const char* load : {"--concurrency=6", "--rate=1500"}) {
      const LoadOutcome outcome = RunLoad(
          server_, {"--weights", "*_proj", "--shared-memory", "--transport", transport, load,
                    "--rows", "1,20", "--max-in-flight", "64", "--requests", "200", "--check"});
      ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
      EXPECT_EQ(outcome.run()["checked"], 200);
      EXPECT_EQ(outcome.run()["mismatches"], 0);
    }
  }
}

TEST_F(LoadTransportTest, EchoRunsTheSameLoad) {
  for (const char* load : {"--concurrency=4", "--rate=1500"}) {
    const LoadOutcome outcome =
        RunLoad(server_, {"--weights", "*_proj", load, "--rows", "1,20", "--requests", "200",
                          "--against-echo", "--check"});
    ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
    const cli::Json run = outcome.run();
    EXPECT_EQ(run["echo"]["requests"], 200);
    EXPECT_EQ(run["echo"]["mismatches"], 0);
    EXPECT_GT(run["over_echo"]["rate"], 0.0);
  }
}

TEST(LoadTransport, SaysThatTheServerDoesNotAllowIt) {
  ServerProcess server(ModelFlags({"bnb_llama_1b_nf4"}));
  ASSERT_TRUE(server.WaitForLog("event=serving")) << server.log();
  const LoadOutcome shared =
      RunLoad(server, {"--weights", "*", "--shared-memory", "--requests", "10"});
  EXPECT_EQ(shared.code, 1);
  EXPECT_THAT(shared.err, HasSubstr("nibble-load: UNIMPLEMENTED: shared memory: "));
  const LoadOutcome echo =
      RunLoad(server, {"--weights", "*", "--against-echo", "--requests", "10"});
  EXPECT_EQ(echo.code, 1);
  EXPECT_EQ(echo.run()["echo"]["errors"]["UNIMPLEMENTED"]["count"], 10);
}

}  // namespace
}  // namespace nibble::testing
