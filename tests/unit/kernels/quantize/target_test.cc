#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nibble/quantize.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const auto target = ParseQuantizeTarget(text);
  EXPECT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(MessageOf(target.status()));
}

TEST(QuantizeTarget, TextsAreReadBack) {
  for (const char* text :
       {"nf4+block=64", "fp4+block=4096+nested", "int4+group=128", "int4+group=-1+zero-points",
        "int4+group=32+zero-points+search", "fp8+tensor", "fp8+channel", "fp8+block"}) {
    const auto target = ParseQuantizeTarget(text);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(ToString(*target), text);
  }
}

TEST(QuantizeTarget, OptionsHaveDefaults) {
  EXPECT_EQ(ToString(*ParseQuantizeTarget("nf4")), "nf4+block=64");
  EXPECT_EQ(ToString(*ParseQuantizeTarget("int4")), "int4+group=128");
  EXPECT_EQ(ToString(*ParseQuantizeTarget("fp8")), "fp8+tensor");
}

TEST(QuantizeTarget, FaultsNameTheOption) {
  for (const char* text : {"", "dense", "NF4", "+nf4", "int8"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("format: expected nf4, fp4, int4 or fp8; received '"));
  }
  EXPECT_THAT(ErrorOf("nf4+group=64"),
              HasSubstr("option of nf4: expected block=N or nested; received 'group=64'"));
  EXPECT_THAT(ErrorOf("int4+"), HasSubstr("received ''"));
  EXPECT_THAT(ErrorOf("fp8+channel+"), HasSubstr("expected tensor, channel or block"));
  for (const char* text : {"nf4+block=", "nf4+block=64x", "nf4+block=99999999999999999999"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("option of nf4"));
  }
  EXPECT_THAT(ErrorOf("nf4+block=63"), HasSubstr("block_size: expected a power of two"));
  EXPECT_THAT(ErrorOf("int4+group=0"), HasSubstr("group_size: expected"));
  EXPECT_THAT(ErrorOf("int4+group=-2"), HasSubstr("group_size: expected"));
}

TEST(QuantizeTarget, GroupsEndWithTheColumn) {
  EXPECT_EQ(SpecFor(*ParseQuantizeTarget("int4+group=-1"), 3, 77, DType::kF16).group_size, 77);
  EXPECT_EQ(SpecFor(*ParseQuantizeTarget("int4"), 3, 77, DType::kF16).group_size, 77);
  EXPECT_EQ(SpecFor(*ParseQuantizeTarget("int4"), 3, 300, DType::kF16).group_size, 128);
}

}  // namespace
}  // namespace nibble
