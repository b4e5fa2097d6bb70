// --quantize=NAME=FORMAT.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/checks.h"
#include "tests/unit/server_leaves/config_support.h"

namespace nibble::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ConfigQuantize, NamesAConfiguredModelAndItsFormat) {
  const auto config = Parse(
      {"--model=a=/x", "--model=b/c=/y", "--quantize=a=nf4+block=32+nested,b/c=int4+group=-1"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->quantize, ElementsAre("a=nf4+block=32+nested", "b/c=int4+group=-1"));
  const ModelFormat parts = SplitQuantize(config->quantize[0]);
  EXPECT_EQ(parts.model, "a");
  EXPECT_EQ(parts.format, "nf4+block=32+nested");
}

TEST(ConfigQuantize, IsAListInAFile) {
  const ConfigFile file("model: {a: /x, b: /y}\nquantize: ['a=fp4', \"b=fp8+block\"]\n");
  const auto config = Parse({file.flag()});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->quantize, ElementsAre("a=fp4", "b=fp8+block"));
}

TEST(ConfigQuantize, FaultsAreNamed) {
  EXPECT_THAT(FaultsOf({"--model=a=/x", "--quantize=a=nf5"}),
              HasSubstr("--quantize: expected NAME=FORMAT; format: expected nf4, fp4, int4 or fp8; "
                        "received 'nf5'"));
  EXPECT_THAT(FaultsOf({"--model=a=/x", "--quantize=a"}), HasSubstr("--quantize: expected"));
  EXPECT_THAT(FaultsOf({"--model=a=/x", "--quantize=a=nf4+block=7"}), HasSubstr("block_size"));
  EXPECT_THAT(FaultsOf({"--quantize=..=nf4"}), HasSubstr("the name of a configured model"));
  EXPECT_EQ(FaultsOf({"--model=a=/x", "--quantize=b=nf4"}),
            "--quantize: expected the name of a configured model, received \"b\"");
  EXPECT_EQ(FaultsOf({"--model=a=/x", "--quantize=a=nf4,a=fp4"}),
            "--quantize: expected each model once, received \"a\"");
  // A wrong model says nothing about its format.
  EXPECT_THAT(FaultsOf({"--model=a", "--quantize=a=nf4"}), HasSubstr("--model: expected"));
}

}  // namespace
}  // namespace nibble::server
