#include "nibble/format.h"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/kernels/core/problems.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

WeightGeometry Geometry(const WeightSpec& spec) {
  const auto geometry = GeometryOf(spec);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  return geometry.value_or(WeightGeometry{});
}

void ExpectInvalid(const WeightSpec& spec, const std::string& message) {
  const auto geometry = GeometryOf(spec);
  ASSERT_FALSE(geometry.ok()) << ToString(spec);
  EXPECT_EQ(geometry.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(MessageOf(geometry.status())), HasSubstr(message));
}

TEST(Tables, NF4Bits) {
  constexpr uint32_t kBits[16] = {0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0,
                                  0xBE91A24D, 0xBE3D353F, 0xBDBA7871, 0x00000000,
                                  0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A,
                                  0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000};
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(std::bit_cast<uint32_t>(kNF4Table[code]), kBits[code]) << code;
  }
  EXPECT_EQ(kNF4Table[1], -0.6961928009986877f);
  EXPECT_EQ(kNF4Table[8], 0.07958029955625534f);
  EXPECT_EQ(kNF4Table[14], 0.7229568362236023f);
}

TEST(Tables, FP4IsTwelfthsOfTheFourBitFloatsWithSigns) {
  constexpr double kMagnitudes[8] = {0, 1.0 / 16, 8, 12, 4, 6, 2, 3};
  for (int code = 0; code < 8; ++code) {
    const auto magnitude = static_cast<float>(kMagnitudes[code] / 12);
    EXPECT_EQ(std::bit_cast<uint32_t>(kFP4Table[code]), std::bit_cast<uint32_t>(magnitude));
    EXPECT_EQ(std::bit_cast<uint32_t>(kFP4Table[code + 8]), std::bit_cast<uint32_t>(-magnitude));
  }
}

TEST(FormatName, ParsesBack) {
  for (Format format : {Format::kDense, Format::kNF4, Format::kFP4, Format::kInt4, Format::kFP8}) {
    EXPECT_EQ(ParseFormat(FormatName(format)).value(), format);
  }
  EXPECT_THAT(std::string(MessageOf(ParseFormat("NF4").status())),
              HasSubstr("format: expected dense, nf4, fp4, int4 or fp8; received 'NF4'"));
}

TEST(GeometryOf, Dense) {
  WeightSpec spec = Spec(Format::kDense, 3, 5);
  EXPECT_EQ(Geometry(spec).code_bytes, 30);
  EXPECT_EQ(Geometry(spec).scale_count, 0);
  spec.dtype = DType::kF32;
  spec.has_bias = true;
  spec.bias_dtype = DType::kF16;
  EXPECT_EQ(Geometry(spec).code_bytes, 60);
  EXPECT_EQ(Geometry(spec).total_bytes, 66);
  EXPECT_EQ(Geometry(Spec(Format::kDense, 1, 4096)).total_bytes, 8192);
}

TEST(GeometryOf, TableBlocksRunOverTheFlatIndex) {
  WeightSpec spec = Spec(Format::kNF4, 7, 33);  // 231 elements
  EXPECT_EQ(Geometry(spec).code_bytes, 116);
  EXPECT_EQ(Geometry(spec).scale_count, 4);
  EXPECT_EQ(Geometry(spec).scale_bytes, 16);
  EXPECT_EQ(Geometry(spec).total_bytes, 132);

  spec = Spec(Format::kFP4, 129, 257);  // 33153 elements
  spec.nested = true;
  spec.block_size = 32;
  spec.nested_block_size = 1024;
  EXPECT_EQ(Geometry(spec).code_bytes, 16577);
  EXPECT_EQ(Geometry(spec).scale_count, 1037);
  EXPECT_EQ(Geometry(spec).scale_bytes, 1037);
  EXPECT_EQ(Geometry(spec).nested_scale_count, 2);
  EXPECT_EQ(Geometry(spec).total_bytes, 16577 + 1037 + 2 * 4 + 256 * 4);
}

TEST(GeometryOf, Int4RowsAndGroupsAreRagged) {
  WeightSpec spec = Spec(Format::kInt4, 5, 131);
  spec.group_size = 32;
  spec.scale_dtype = DType::kF16;
  EXPECT_EQ(Geometry(spec).code_bytes, 5 * 66);
  EXPECT_EQ(Geometry(spec).groups, 5);
  EXPECT_EQ(Geometry(spec).scale_count, 25);
  EXPECT_EQ(Geometry(spec).scale_bytes, 50);
  EXPECT_EQ(Geometry(spec).zero_point_bytes, 0);
  spec.has_zero_points = true;
  spec.has_group_index = true;
  EXPECT_EQ(Geometry(spec).zero_point_bytes, 25);
  EXPECT_EQ(Geometry(spec).total_bytes, 5 * 66 + 50 + 25 + 131 * 4);
  spec.group_size = 131;
  EXPECT_EQ(Geometry(spec).groups, 1);
  spec.group_size = INT64_MAX;
  EXPECT_EQ(Geometry(spec).groups, 1);
}

TEST(GeometryOf, FP8Layouts) {
  WeightSpec spec = Spec(Format::kFP8, 576, 200);
  EXPECT_EQ(Geometry(spec).scale_count, 1);
  spec.scale_layout = ScaleLayout::kChannel;
  spec.scale_dtype = DType::kBF16;
  EXPECT_EQ(Geometry(spec).scale_count, 576);
  EXPECT_EQ(Geometry(spec).scale_bytes, 1152);
  spec.scale_layout = ScaleLayout::kBlock;
  EXPECT_EQ(Geometry(spec).scale_count, 5 * 2);
  spec.scale_block_n = 1;
  spec.scale_block_k = 7;
  EXPECT_EQ(Geometry(spec).scale_count, 576 * 29);
  EXPECT_EQ(Geometry(spec).total_bytes, 576 * 200 + 576 * 29 * 2);
}

TEST(GeometryOf, NamesTheBadField) {
  ExpectInvalid(Spec(Format::kDense, 0, 5), "n: expected a value of at least 1; received 0");
  ExpectInvalid(Spec(Format::kNF4, 5, -3), "k: expected a value of at least 1; received -3");

  WeightSpec spec = Spec(Format::kDense, 2, 2);
  spec.dtype = DType::kI8;
  ExpectInvalid(spec, "dtype: expected F32, F16 or BF16; received I8");
  spec = Spec(Format::kFP8, 2, 2);
  spec.scale_dtype = DType::kF8E4M3;
  ExpectInvalid(spec, "scale_dtype: expected F32, F16 or BF16; received F8_E4M3");
  spec = Spec(Format::kFP8, 2, 2);
  spec.has_bias = true;
  spec.bias_dtype = DType::kI8;
  ExpectInvalid(spec, "bias_dtype: expected F32, F16 or BF16; received I8");

  for (int64_t size : {int64_t{0}, int64_t{-64}, int64_t{16}, int64_t{48}, int64_t{8192}}) {
    spec = Spec(Format::kNF4, 2, 2);
    spec.block_size = size;
    ExpectInvalid(spec, "block_size: expected a power of two from 32 to 4096; received " +
                            std::to_string(size));
    spec = Spec(Format::kFP4, 2, 2);
    spec.nested = true;
    spec.nested_block_size = size;
    ExpectInvalid(spec, "nested_block_size: expected a power of two");
    spec.nested = false;
    EXPECT_TRUE(GeometryOf(spec).ok());
  }
  for (int64_t size : {0, -1}) {
    spec = Spec(Format::kInt4, 2, 2);
    spec.group_size = size;
    ExpectInvalid(spec, "group_size: expected a value of at least 1");
    spec = Spec(Format::kFP8, 2, 2);
    spec.scale_layout = ScaleLayout::kBlock;
    spec.scale_block_n = size;
    ExpectInvalid(spec, "scale_block_n: expected a value of at least 1");
    spec.scale_block_n = 1;
    spec.scale_block_k = size;
    ExpectInvalid(spec, "scale_block_k: expected a value of at least 1");
  }
  spec = Spec(static_cast<Format>(77), 2, 2);
  ExpectInvalid(spec, "format: expected dense, nf4, fp4, int4 or fp8; received 77");
  spec = Spec(Format::kFP8, 2, 2);
  spec.scale_layout = static_cast<ScaleLayout>(9);
  ExpectInvalid(spec, "scale_layout: expected tensor, channel or block; received 9");
}

TEST(GeometryOf, ProductsPast63BitsAreErrors) {
  constexpr int64_t k2To40 = int64_t{1} << 40;
  constexpr int64_t k2To62 = int64_t{1} << 62;
  for (Format format : {Format::kDense, Format::kNF4, Format::kFP4, Format::kInt4, Format::kFP8}) {
    ExpectInvalid(Spec(format, k2To40, k2To40), "n, k: expected a weight below 2^63 bytes");
    ExpectInvalid(Spec(format, k2To62, 2), "n, k: expected a weight below 2^63 bytes");
    ExpectInvalid(Spec(format, INT64_MAX, INT64_MAX), "received [9223372036854775807, ");
  }
  // The elements fit; their bytes, scales or bias do not.
  ExpectInvalid(Spec(Format::kDense, k2To62, 1), "n, k: expected a weight below 2^63 bytes");
  WeightSpec spec = Spec(Format::kInt4, k2To62, 1);
  ExpectInvalid(spec, "n, k: expected a weight below 2^63 bytes");
  spec = Spec(Format::kFP8, k2To62, 1);
  EXPECT_EQ(Geometry(spec).total_bytes, k2To62 + 4);
  spec.scale_layout = ScaleLayout::kChannel;
  ExpectInvalid(spec, "n, k: expected a weight below 2^63 bytes");
  spec.scale_layout = ScaleLayout::kTensor;
  spec.has_bias = true;
  ExpectInvalid(spec, "n, k: expected a weight below 2^63 bytes");
  spec = Spec(Format::kInt4, 1, k2To62);
  EXPECT_TRUE(GeometryOf(spec).ok());
  spec.has_group_index = true;
  ExpectInvalid(spec, "n, k: expected a weight below 2^63 bytes");
  EXPECT_EQ(Geometry(Spec(Format::kNF4, 1, k2To62)).code_bytes, k2To62 / 2);
}

TEST(ToString, OneLineAndAVariantForEachFormat) {
  WeightSpec spec = Spec(Format::kNF4, 4096, 14336);
  EXPECT_EQ(ToString(spec), "nf4 4096x14336 block 64");
  EXPECT_EQ(VariantName(spec), "plain");
  spec.nested = true;
  EXPECT_EQ(ToString(spec), "nf4 4096x14336 block 64 nested");
  EXPECT_EQ(VariantName(spec), "nested");

  spec = Spec(Format::kInt4, 256, 256);
  EXPECT_EQ(ToString(spec), "int4 256x256 group 128 sym");
  EXPECT_EQ(VariantName(spec), "sym");
  spec.has_zero_points = true;
  spec.has_group_index = true;
  EXPECT_EQ(ToString(spec), "int4 256x256 group 128 zp act-order");
  EXPECT_EQ(VariantName(spec), "zp-act-order");

  spec = Spec(Format::kFP8, 8, 9);
  spec.has_bias = true;
  spec.has_input_scale = true;
  EXPECT_EQ(ToString(spec), "fp8 8x9 tensor input-scale bias");
  EXPECT_EQ(VariantName(spec), "tensor");
  spec = Spec(Format::kFP8, 8, 9);
  spec.scale_layout = ScaleLayout::kBlock;
  EXPECT_EQ(ToString(spec), "fp8 8x9 block 128x128");
  EXPECT_EQ(VariantName(spec), "block");
  spec.scale_layout = ScaleLayout::kChannel;
  EXPECT_EQ(VariantName(spec), "channel");

  EXPECT_EQ(ToString(Spec(Format::kDense, 1, 7)), "dense 1x7 BF16");
  EXPECT_EQ(VariantName(Spec(Format::kDense, 1, 7)), "plain");
}

}  // namespace
}  // namespace nibble
