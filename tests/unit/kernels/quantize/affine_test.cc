#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nibble/quantize.h"
#include "tests/unit/kernels/quantize/fixture.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

const std::vector<std::pair<int64_t, int64_t>> kShapes = {{1, 1},  {1, 2},    {3, 5},
                                                          {7, 33}, {129, 17}, {5, 257}};
constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

double RoundoffOf(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

WeightSpec Int4(int64_t group_size, DType scale_dtype, bool zero_points) {
  WeightSpec spec;
  spec.format = Format::kInt4;
  spec.group_size = group_size;
  spec.scale_dtype = scale_dtype;
  spec.has_zero_points = zero_points;
  return spec;
}

WeightSpec FP8(ScaleLayout layout, DType scale_dtype) {
  WeightSpec spec;
  spec.format = Format::kFP8;
  spec.scale_layout = layout;
  spec.scale_dtype = scale_dtype;
  spec.scale_block_n = 64;
  spec.scale_block_k = 7;
  return spec;
}

std::string ErrorOf(const TestMatrix& matrix, const WeightSpec& target) {
  const auto weight = Quantize(matrix.view(), target);
  EXPECT_EQ(weight.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(MessageOf(weight.status()));
}

// Half a step, plus what rounding the scale takes off the ends of the range.
TEST(QuantizeInt4, ErrorIsHalfAStep) {
  for (const auto& [rows, cols] : kShapes) {
    for (DType dtype : kFloats) {
      for (DType scale_dtype : kFloats) {
        for (int64_t group_size : {int64_t{1}, int64_t{3}, int64_t{32}, cols}) {
          for (bool zero_points : {false, true}) {
            const TestMatrix matrix = RandomMatrix(dtype, rows, cols, 5);
            const CanonicalWeight weight =
                QuantizeOrDie(matrix, Int4(group_size, scale_dtype, zero_points));
            const auto decoded = DecodeAll(weight);
            const int64_t groups = CeilDiv(cols, group_size);
            const double steps = zero_points ? 15.0 : 7.5;
            // F16 scales below 2^-14 are rounded to multiples of 2^-24.
            const double subnormal = scale_dtype == DType::kF16 ? steps * 0x1p-25 : 0.0;
            const double bound = 0.5 + steps * (RoundoffOf(scale_dtype) + 0x1p-22);
            for (int64_t i = 0; i < rows * cols; ++i) {
              const float scale = ScaleAt(weight, i / cols * groups + i % cols / group_size);
              const auto at = static_cast<size_t>(i);
              ASSERT_LE(std::fabs(static_cast<double>(decoded[at]) - matrix.values[at]),
                        scale * bound + subnormal)
                  << ToString(weight.spec) << " element " << i;
            }
          }
        }
      }
    }
  }
}

TEST(QuantizeInt4, SymmetricScaleSpreadsTheRange) {
  const CanonicalWeight weight = QuantizeOrDie(
      MakeMatrix(DType::kF32, 1, 5, {7.5f, -7.5f, 1.0f, -3.4f, 0.5f}), Int4(5, DType::kF32, false));
  EXPECT_EQ(ScaleAt(weight, 0), 1.0f);
  EXPECT_EQ(DecodeAll(weight), (std::vector<float>{7, -8, 1, -3, 0}));
  EXPECT_EQ(ByteAt(weight.codes, 2) >> 4, 0);  // the nibble past an odd K
}

TEST(QuantizeInt4, ZeroPointsCoverTheRangeAndZeroIsExact) {
  CanonicalWeight weight =
      QuantizeOrDie(MakeMatrix(DType::kF32, 1, 4, {-5, 10, 0, 2}), Int4(4, DType::kF32, true));
  EXPECT_EQ(ScaleAt(weight, 0), 1.0f);
  EXPECT_EQ(ByteAt(weight.zero_points, 0), 5);
  EXPECT_EQ(DecodeAll(weight), (std::vector<float>{-5, 10, 0, 2}));
  // Ranges that do not reach zero are widened to it: zero points stay in 0..15.
  weight =
      QuantizeOrDie(MakeMatrix(DType::kF32, 2, 2, {15, 30, -15, -30}), Int4(2, DType::kF32, true));
  EXPECT_EQ(ByteAt(weight.zero_points, 0), 0);
  EXPECT_EQ(ByteAt(weight.zero_points, 1), 15);
  EXPECT_EQ(DecodeAll(weight), (std::vector<float>{16, 30, -16, -30}));
}

TEST(QuantizeInt4, ScaleIsRoundedBeforeCodesAreComputed) {
  // amax / 7.5 = 1.36 is 1.359375 in BF16; 4.757 is past 3.5 steps of that, not of 1.36.
  const CanonicalWeight weight =
      QuantizeOrDie(MakeMatrix(DType::kF32, 1, 2, {10.2f, 4.759f}), Int4(2, DType::kBF16, false));
  EXPECT_EQ(ScaleAt(weight, 0), 1.359375f);
  EXPECT_LT(4.759f / 1.36f, 3.5f);
  EXPECT_EQ(DecodeAll(weight)[1], 4 * 1.359375f);
}

TEST(QuantizeFP8, ErrorIsHalfAStepOfE4M3) {
  for (const auto& [rows, cols] : kShapes) {
    for (DType dtype : kFloats) {
      for (DType scale_dtype : kFloats) {
        for (ScaleLayout layout :
             {ScaleLayout::kTensor, ScaleLayout::kChannel, ScaleLayout::kBlock}) {
          const TestMatrix matrix = RandomMatrix(dtype, rows, cols, 6);
          const CanonicalWeight weight = QuantizeOrDie(matrix, FP8(layout, scale_dtype));
          const auto decoded = DecodeAll(weight);
          for (int64_t i = 0; i < rows * cols; ++i) {
            const int64_t n = i / cols, k = i % cols;
            const int64_t index = layout == ScaleLayout::kTensor ? 0
                                  : layout == ScaleLayout::kChannel
                                      ? n
                                      : n / 64 * CeilDiv(cols, 7) + k / 7;
            const double scale = ScaleAt(weight, index);
            const auto at = static_cast<size_t>(i);
            const double value = matrix.values[at];
            // Half of 2^-3 relative, or half of the subnormal step 2^-9.
            const double bound = std::max(std::fabs(value) * 0x1p-4, scale * 0x1p-10) * (1 + 1e-6);
            ASSERT_LE(std::fabs(decoded[at] - value), bound) << ToString(weight.spec) << " " << i;
          }
        }
      }
    }
  }
}

TEST(QuantizeFP8, EveryCodeRoundTrips) {
  std::vector<float> values;
  for (int code = 0; code < 256; ++code) {
    const float value = F8E4M3ToFloat(static_cast<uint8_t>(code));
    values.push_back(std::isnan(value) ? 448.0f : value);
  }
  for (ScaleLayout layout : {ScaleLayout::kTensor, ScaleLayout::kChannel}) {
    const CanonicalWeight weight =
        QuantizeOrDie(MakeMatrix(DType::kF32, 1, 256, values), FP8(layout, DType::kF32));
    EXPECT_EQ(ScaleAt(weight, 0), 1.0f);
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7F) == 0x7F) continue;
      EXPECT_EQ(ByteAt(weight.codes, code), code);
    }
  }
}

TEST(QuantizeFP8, SaturatesWhenTheScaleWasRoundedDown) {
  // 1.001 rounds to 1 in BF16, so that 448 * 1.001 is past the largest code.
  const CanonicalWeight weight = QuantizeOrDie(MakeMatrix(DType::kF32, 1, 2, {448.448f, -448.448f}),
                                               FP8(ScaleLayout::kTensor, DType::kBF16));
  EXPECT_EQ(ScaleAt(weight, 0), 1.0f);
  EXPECT_EQ(ByteAt(weight.codes, 0), 0x7E);
  EXPECT_EQ(ByteAt(weight.codes, 1), 0xFE);
}

TEST(QuantizeAffine, ZerosAndTinyValuesGetAFloorScale) {
  for (DType scale_dtype : kFloats) {
    for (float value : {0.0f, 1e-44f, -1e-38f}) {
      const TestMatrix matrix = MakeMatrix(DType::kF32, 2, 2, {value, value, value, value});
      for (const WeightSpec& target :
           {Int4(2, scale_dtype, false), Int4(2, scale_dtype, true),
            FP8(ScaleLayout::kTensor, scale_dtype), FP8(ScaleLayout::kChannel, scale_dtype),
            FP8(ScaleLayout::kBlock, scale_dtype)}) {
        const CanonicalWeight weight = QuantizeOrDie(matrix, target);
        EXPECT_GT(ScaleAt(weight, 0), 0.0f);
        EXPECT_TRUE(std::isfinite(ScaleAt(weight, 0)));
        for (float decoded : DecodeAll(weight)) EXPECT_EQ(decoded, 0.0f);
      }
    }
  }
}

TEST(QuantizeAffine, ScalesPastTheirTypeAreErrors) {
  const TestMatrix matrix = MakeMatrix(DType::kF32, 2, 2, {0, 1, 0, 1e9f});
  EXPECT_THAT(ErrorOf(matrix, Int4(1, DType::kF16, false)),
              HasSubstr("scales[1, 1]: expected a value within the range of F16; received 1333"));
  EXPECT_THAT(ErrorOf(matrix, FP8(ScaleLayout::kChannel, DType::kF16)),
              HasSubstr("scales[1, 0]: expected a value within the range of F16; received 2232"));
  EXPECT_TRUE(Quantize(matrix.view(), Int4(1, DType::kBF16, false)).ok());
  const float largest = std::numeric_limits<float>::max();
  const TestMatrix extremes = MakeMatrix(DType::kF32, 1, 2, {largest, -largest});
  EXPECT_TRUE(Quantize(extremes.view(), Int4(2, DType::kF32, false)).ok());
  EXPECT_THAT(ErrorOf(extremes, Int4(2, DType::kF32, true)), HasSubstr("received inf"));
}

TEST(Quantize, DenseIsCopiedRowByRow) {
  const TestMatrix matrix = RandomMatrix(DType::kF16, 3, 8, 7);
  ConstMatrixView view = matrix.view();
  view.cols = 5;
  WeightSpec target;
  target.has_bias = true;
  const auto weight = Quantize(view, target);
  ASSERT_TRUE(weight.ok()) << weight.status();
  EXPECT_EQ(weight->spec.dtype, DType::kF16);
  EXPECT_FALSE(weight->spec.has_bias);
  ASSERT_TRUE(ValidateWeight(*weight).ok());
  const auto decoded = DecodeAll(*weight);
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(decoded[i], matrix.values[i / 5 * 8 + i % 5]) << i;
}

TEST(Quantize, StridedAndRepeatedRowsQuantizeLikeTheirCopies) {
  const TestMatrix matrix = RandomMatrix(DType::kBF16, 3, 40, 8);
  std::vector<float> repeated, left;
  for (size_t i = 0; i < 120; ++i) repeated.push_back(matrix.values[i % 40]);
  for (size_t i = 0; i < 99; ++i) left.push_back(matrix.values[i / 33 * 40 + i % 33]);
  WeightSpec nf4;
  nf4.format = Format::kNF4;
  for (const WeightSpec& target :
       {nf4, Int4(32, DType::kF16, true), FP8(ScaleLayout::kBlock, DType::kF32)}) {
    const ConstMatrixView one_row{matrix.bytes.data(), DType::kBF16, 3, 40, 0};
    const ConstMatrixView columns{matrix.bytes.data(), DType::kBF16, 3, 33, 40};
    EXPECT_EQ(DecodeAll(Quantize(one_row, target).value()),
              DecodeAll(QuantizeOrDie(MakeMatrix(DType::kBF16, 3, 40, repeated), target)));
    EXPECT_EQ(DecodeAll(Quantize(columns, target).value()),
              DecodeAll(QuantizeOrDie(MakeMatrix(DType::kBF16, 3, 33, left), target)));
  }
}

TEST(Quantize, NamesThePositionOfNaNAndInfinity) {
  for (DType dtype : kFloats) {
    for (Format format :
         {Format::kDense, Format::kNF4, Format::kFP4, Format::kInt4, Format::kFP8}) {
      WeightSpec target;
      target.format = format;
      std::vector<float> values(15, 1.0f);
      values[7] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_THAT(ErrorOf(MakeMatrix(dtype, 3, 5, values), target),
                  HasSubstr("matrix[1, 2]: expected a finite value; received nan"));
      values[7] = -std::numeric_limits<float>::infinity();
      EXPECT_THAT(ErrorOf(MakeMatrix(dtype, 3, 5, values), target),
                  HasSubstr("matrix[1, 2]: expected a finite value; received -inf"));
    }
  }
}

TEST(Quantize, NamesTheBadArgument) {
  TestMatrix matrix = MakeMatrix(DType::kF32, 2, 2, {1, 2, 3, 4});
  WeightSpec target = Int4(2, DType::kF32, false);
  target.has_group_index = true;
  EXPECT_THAT(ErrorOf(matrix, target), HasSubstr("has_group_index: expected false"));
  target = FP8(ScaleLayout::kTensor, DType::kF32);
  target.has_input_scale = true;
  EXPECT_THAT(ErrorOf(matrix, target), HasSubstr("has_input_scale: expected false"));
  EXPECT_THAT(ErrorOf(matrix, Int4(-1, DType::kF32, false)),
              HasSubstr("group_size: expected a value of at least 1; received -1"));
  matrix.rows = 0;
  EXPECT_THAT(ErrorOf(matrix, Int4(2, DType::kF32, false)),
              HasSubstr("matrix: expected at least 1 row and 1 column; received [0, 2]"));
  matrix.rows = 2;
  matrix.dtype = DType::kI8;
  EXPECT_THAT(ErrorOf(matrix, Int4(2, DType::kF32, false)),
              HasSubstr("matrix.dtype: expected F32, F16 or BF16; received I8"));
  const auto null =
      Quantize(MakeConstView(nullptr, DType::kF32, 2, 2), Int4(2, DType::kF32, false));
  EXPECT_THAT(std::string(MessageOf(null.status())), HasSubstr("matrix.data: expected memory"));
}

}  // namespace
}  // namespace nibble
