#include "server/service/auth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "nibble/status.h"

namespace nibble::server {
namespace {

class TokenFile : public ::testing::Test {
 protected:
  TokenFile() : path_(::testing::TempDir() + "/tokens-" + std::to_string(getpid())) {}
  ~TokenFile() override { std::remove(path_.c_str()); }
  absl::StatusOr<TokenSet> Read(const std::string& text) {
    std::ofstream(path_) << text;
    return TokenSet::FromFile(path_);
  }
  std::string path_;
};

TEST_F(TokenFile, HoldsOneTokenALine) {
  const auto tokens = Read("# names\nfirst\r\n\nsecond-token\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_TRUE(tokens->Contains("first"));
  EXPECT_TRUE(tokens->Contains("second-token"));
  for (const char* other : {"", "firs", "first ", "second", "# names", "FIRST"}) {
    EXPECT_FALSE(tokens->Contains(other)) << other;
  }
}

TEST_F(TokenFile, FaultsAreNamedWithoutTheToken) {
  const auto spaced = Read("ok\nsecret with spaces\n");
  EXPECT_EQ(spaced.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(MessageOf(spaced.status())), ::testing::HasSubstr("line 2"));
  EXPECT_THAT(std::string(MessageOf(spaced.status())),
              ::testing::Not(::testing::HasSubstr("secret")));
  EXPECT_FALSE(Read("# nothing\n").ok());
  EXPECT_FALSE(TokenSet::FromFile(path_ + "-none").ok());
}

TEST_F(TokenFile, AnEmptySetIsNoSetOfAllTokens) {
  EXPECT_TRUE(TokenSet().empty());
  EXPECT_FALSE(TokenSet().Contains(""));
}

}  // namespace
}  // namespace nibble::server
