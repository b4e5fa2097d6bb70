#include "server/service/tensor_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/status.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

v1::Tensor Tensor(v1::DType dtype, std::vector<int64_t> shape, size_t bytes) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (int64_t dimension : shape) tensor.add_shape(dimension);
  tensor.set_data(std::string(bytes, '\1'));
  return tensor;
}

absl::StatusOr<WireMatrix> Parse(const v1::Tensor& tensor) {
  return ParseMatrix(tensor, tensor.data().size(), "x");
}

std::string Refusal(const v1::Tensor& tensor) {
  const auto parsed = Parse(tensor);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(MessageOf(parsed.status()));
}

TEST(TensorCodec, FlattensLeadingDimensions) {
  const auto matrix = Parse(Tensor(v1::DTYPE_F32, {2, 3, 5}, 120));
  ASSERT_TRUE(matrix.ok());
  EXPECT_EQ(matrix->rows, 6);
  EXPECT_EQ(matrix->cols, 5);
  EXPECT_EQ(matrix->row_bytes(), 20);
  const auto vector = Parse(Tensor(v1::DTYPE_I8, {7}, 7));
  EXPECT_EQ(vector->rows, 1);
  EXPECT_EQ(vector->cols, 7);
}

TEST(TensorCodec, EmptyTensorsAreLegal) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 5}, {5, 0}, {0}, {3, 0, INT64_MAX}}) {
    EXPECT_TRUE(Parse(Tensor(v1::DTYPE_BF16, shape, 0)).ok());
  }
}

TEST(TensorCodec, LyingShapesAreNamed) {
  EXPECT_THAT(Refusal(Tensor(v1::DTYPE_BF16, {2, 2}, 7)), HasSubstr("expected 8 bytes"));
  EXPECT_THAT(Refusal(Tensor(v1::DTYPE_BF16, {-1, 2}, 4)), HasSubstr("[-1, 2]"));
  EXPECT_THAT(Refusal(Tensor(v1::DTYPE_BF16, {INT64_MAX, 2, 1}, 4)), HasSubstr("2^63"));
  EXPECT_THAT(Refusal(Tensor(v1::DTYPE_BF16, {INT64_MAX, 1}, 4)), HasSubstr("2^63"));
  EXPECT_THAT(Refusal(Tensor(v1::DTYPE_BF16, {}, 2)), HasSubstr("dimensions"));
  EXPECT_THAT(Refusal(Tensor(v1::DTYPE_BF16, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 2)),
              HasSubstr("received 9"));
  EXPECT_THAT(Refusal(Tensor(v1::DTYPE_UNSPECIFIED, {1}, 2)), HasSubstr("x.dtype"));
}

TEST(TensorCodec, TypesAreCheckedAgainstWhatIsAllowed) {
  EXPECT_EQ(ParseDType(v1::DTYPE_UNSPECIFIED, DType::kF16, {}, "f").value(), DType::kF16);
  EXPECT_EQ(ParseDType(v1::DTYPE_F32, DType::kF16, {DType::kF32}, "f").value(), DType::kF32);
  const auto refused = ParseDType(v1::DTYPE_I8, DType::kF16, {DType::kF32, DType::kBF16}, "f");
  EXPECT_EQ(MessageOf(refused.status()), "f: expected one of F32, BF16; received I8");
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8}) {
    EXPECT_EQ(ParseDType(ToWire(dtype), DType::kF32, {dtype}, "f").value(), dtype);
  }
}

TEST(TensorCodec, ResultsKeepTheLeadingDimensions) {
  const v1::Tensor like = Tensor(v1::DTYPE_BF16, {2, 3, 5}, 60);
  v1::Tensor result;
  const auto bytes = ShapeResult(like, 6, 7, DType::kF32, 1 << 20, "y", &result);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, 168u);
  EXPECT_EQ(result.dtype(), v1::DTYPE_F32);
  EXPECT_THAT(result.shape(), ::testing::ElementsAre(2, 3, 7));
}

TEST(TensorCodec, ResultsOverTheLimitAreRefusedBeforeMemoryIsTaken) {
  const v1::Tensor like = Tensor(v1::DTYPE_BF16, {0, 5}, 0);
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1 << 20, 1}, {INT64_MAX, 2}, {INT64_MAX / 4, 1}}) {
    v1::Tensor result;
    const auto bytes = ShapeResult(like, rows, cols, DType::kF32, 1 << 20, "y", &result);
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(MessageOf(bytes.status())), HasSubstr("--max-message-bytes"));
  }
}

TEST(TensorCodec, RequestIdsAreBounded) {
  EXPECT_TRUE(CheckRequestId(std::string(128, 'x')).ok());
  EXPECT_FALSE(CheckRequestId(std::string(129, 'x')).ok());
}

}  // namespace
}  // namespace nibble::server
