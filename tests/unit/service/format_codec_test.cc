#include "server/service/format_codec.h"

#include <gtest/gtest.h>

#include "nibble/status.h"

namespace nibble::server {
namespace {

v1::FormatSpec Format(v1::WeightFormat format) {
  v1::FormatSpec spec;
  spec.set_format(format);
  return spec;
}

TEST(FormatCodec, DefaultsAreThoseOfTheFormat) {
  const auto nf4 = ParseFormat(Format(v1::WEIGHT_FORMAT_NF4), 10, 20, "f");
  ASSERT_TRUE(nf4.ok());
  EXPECT_EQ(nf4->block_size, 64);
  EXPECT_FALSE(nf4->nested);
  const auto int4 = ParseFormat(Format(v1::WEIGHT_FORMAT_INT4), 10, 256, "f");
  EXPECT_EQ(int4->group_size, 128);
  const auto narrow = ParseFormat(Format(v1::WEIGHT_FORMAT_INT4), 10, 20, "f");
  EXPECT_EQ(narrow->group_size, 20);
}

TEST(FormatCodec, AGroupOfMinusOneIsAWholeColumn) {
  v1::FormatSpec spec = Format(v1::WEIGHT_FORMAT_INT4);
  spec.set_group_size(-1);
  EXPECT_EQ(ParseFormat(spec, 10, 300, "f")->group_size, 300);
  spec.set_group_size(-2);
  EXPECT_FALSE(ParseFormat(spec, 10, 300, "f").ok());
}

TEST(FormatCodec, FaultsAreInvalidArguments) {
  v1::FormatSpec odd = Format(v1::WEIGHT_FORMAT_NF4);
  odd.set_block_size(63);
  for (const auto& parsed :
       {ParseFormat(odd, 10, 20, "f"),
        ParseFormat(Format(v1::WEIGHT_FORMAT_UNSPECIFIED), 1, 1, "f"),
        ParseFormat(Format(static_cast<v1::WeightFormat>(50)), 1, 1, "f"),
        ParseFormat(Format(v1::WEIGHT_FORMAT_FP8), 0, 1, "f"),
        ParseFormat(Format(v1::WEIGHT_FORMAT_FP8), -1, 1, "f"),
        ParseFormat(Format(v1::WEIGHT_FORMAT_FP8), INT64_MAX, INT64_MAX, "f")}) {
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(FormatCodec, SpecsSurviveTheWire) {
  for (v1::WeightFormat format :
       {v1::WEIGHT_FORMAT_DENSE, v1::WEIGHT_FORMAT_NF4, v1::WEIGHT_FORMAT_FP4,
        v1::WEIGHT_FORMAT_INT4, v1::WEIGHT_FORMAT_FP8}) {
    v1::FormatSpec spec = Format(format);
    if (format == v1::WEIGHT_FORMAT_NF4) spec.set_nested(true);
    if (format == v1::WEIGHT_FORMAT_INT4) spec.set_zero_points(true);
    if (format == v1::WEIGHT_FORMAT_FP8) spec.set_scale_layout(v1::SCALE_LAYOUT_BLOCK);
    const auto parsed = ParseFormat(spec, 64, 256, "f");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    v1::FormatSpec wire;
    ToWire(*parsed, &wire);
    EXPECT_EQ(*ParseFormat(wire, 64, 256, "f"), *parsed);
  }
}

TEST(FormatCodec, QuantizationsNameTheirTargetAndLayers) {
  v1::Quantization wire;
  wire.mutable_format()->set_format(v1::WEIGHT_FORMAT_INT4);
  wire.mutable_format()->set_group_size(-1);
  wire.mutable_format()->set_search_scale(true);
  wire.add_include("*.mlp.*");
  wire.add_exclude("lm_head");
  const auto plan = ParseQuantization(wire, "quantize");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(ToString(plan->target), "int4+group=-1+search");
  EXPECT_EQ(plan->filter.include, std::vector<std::string>{"*.mlp.*"});
  EXPECT_EQ(plan->filter.exclude, std::vector<std::string>{"lm_head"});
  wire.mutable_format()->set_group_size(0);
  EXPECT_EQ(ToString(ParseQuantization(wire, "quantize")->target), "int4+group=128+search");
}

TEST(FormatCodec, QuantizationsAreChecked) {
  const auto error = [](const v1::Quantization& wire) {
    const auto plan = ParseQuantization(wire, "quantize");
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(MessageOf(plan.status()));
  };
  v1::Quantization wire;
  EXPECT_NE(error(wire).find("quantize.format.format: expected"), std::string::npos);
  wire.mutable_format()->set_format(v1::WEIGHT_FORMAT_DENSE);
  EXPECT_NE(error(wire).find("received DENSE"), std::string::npos);
  wire.mutable_format()->set_format(v1::WEIGHT_FORMAT_NF4);
  wire.add_include("");
  EXPECT_NE(error(wire).find("quantize.include: expected patterns of 1 to 256 bytes"),
            std::string::npos);
  wire.clear_include();
  wire.add_exclude(std::string(257, '*'));
  EXPECT_NE(error(wire).find("quantize.exclude: expected patterns"), std::string::npos);
  wire.clear_exclude();
  for (int i = 0; i < 257; ++i) wire.add_include("a");
  EXPECT_NE(error(wire).find("at most 256 patterns; received 257"), std::string::npos);
}

TEST(FormatCodec, HowACheckpointIsOpened) {
  v1::LoadRequest request;
  const auto plain = ParseOpenOptions(request.fuse(), request.layers());
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->fusing, checkpoint::Fusing::kNone);
  EXPECT_TRUE(plain->layers.empty());
  request.add_layers("a");
  EXPECT_EQ(ParseOpenOptions(v1::FUSE_REQUIRED, request.layers())->fusing,
            checkpoint::Fusing::kRequired);
  const auto where_possible = ParseOpenOptions(v1::FUSE_WHERE_POSSIBLE, request.layers());
  EXPECT_EQ(where_possible->fusing, checkpoint::Fusing::kWherePossible);
  EXPECT_EQ(where_possible->layers, std::vector<std::string>{"a"});
  EXPECT_EQ(ParseOpenOptions(static_cast<v1::Fuse>(9), request.layers()).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (int i = 0; i < 1024; ++i) request.add_layers("a");
  EXPECT_EQ(ParseOpenOptions(v1::FUSE_REQUIRED, request.layers()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::server
