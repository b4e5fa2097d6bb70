#include "nibble/client_tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "nibble/numeric.h"

namespace nibble {
namespace {

struct Pair {
  v1::DType wire;
  DType kernel;
};
constexpr Pair kSmall[] = {{v1::DTYPE_F16, DType::kF16},
                           {v1::DTYPE_BF16, DType::kBF16},
                           {v1::DTYPE_F8_E4M3, DType::kF8E4M3}};

uint32_t EncodeBits(v1::DType dtype, float value) {
  uint32_t word = 0;
  client::EncodeElement(value, dtype, &word);
  return word;
}

uint32_t KernelBits(DType dtype, float value) {
  uint32_t word = 0;
  StoreFromFloat(&word, dtype, 0, value);
  return word;
}

// Two independent conversions, one of the client and one of the kernels, agree on every code.
TEST(TensorTest, EveryCodeDecodesAsInTheKernels) {
  for (const auto& [wire, kernel] : kSmall) {
    const uint32_t codes = 1u << (8 * client::DTypeBytes(wire));
    for (uint32_t code = 0; code < codes; ++code) {
      const float ours = client::DecodeElement(&code, wire);
      const float theirs = LoadAsFloat(&code, kernel, 0);
      if (std::isnan(theirs)) {
        ASSERT_TRUE(std::isnan(ours)) << code;
        continue;
      }
      ASSERT_EQ(std::bit_cast<uint32_t>(ours), std::bit_cast<uint32_t>(theirs)) << code;
      ASSERT_EQ(EncodeBits(wire, ours), code);
    }
  }
}

TEST(TensorTest, RoundingAgreesWithTheKernels) {
  std::mt19937 random(7);
  for (const auto& [wire, kernel] : kSmall) {
    for (int i = 0; i < 200'000; ++i) {
      const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
      if (std::isnan(value)) continue;
      ASSERT_EQ(EncodeBits(wire, value), KernelBits(kernel, value)) << value;
    }
    // Values about the format's own codes: ties and their neighbours.
    for (uint32_t code = 0; code < 0x7E; ++code) {
      const float low = client::DecodeElement(&code, wire);
      const uint32_t next = code + 1;
      const float tie = low + (client::DecodeElement(&next, wire) - low) / 2;
      for (const float value : {tie, std::nextafterf(tie, 0.0f), std::nextafterf(tie, 1e9f)}) {
        ASSERT_EQ(EncodeBits(wire, value), KernelBits(kernel, value)) << value;
        ASSERT_EQ(EncodeBits(wire, -value), KernelBits(kernel, -value)) << value;
      }
    }
  }
}

TEST(TensorTest, SaturationAndSpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(client::RoundTo(v1::DTYPE_F8_E4M3, inf), 448.0f);
  EXPECT_EQ(client::RoundTo(v1::DTYPE_F8_E4M3, -1e9f), -448.0f);
  EXPECT_EQ(client::RoundTo(v1::DTYPE_F16, 65519.0f), 65504.0f);
  EXPECT_EQ(client::RoundTo(v1::DTYPE_F16, 65520.0f), inf);
  EXPECT_EQ(client::RoundTo(v1::DTYPE_BF16, std::numeric_limits<float>::max()), inf);
  EXPECT_TRUE(std::isnan(client::RoundTo(v1::DTYPE_F8_E4M3, std::nanf(""))));
  EXPECT_EQ(client::RoundTo(v1::DTYPE_I8, 127.5f), 127.0f);
  EXPECT_EQ(client::RoundTo(v1::DTYPE_I8, -1000.0f), -128.0f);
  EXPECT_EQ(client::RoundTo(v1::DTYPE_I8, 2.5f), 2.0f);
  EXPECT_EQ(client::RoundTo(v1::DTYPE_I8, std::nanf("")), 0.0f);
}

TEST(TensorTest, FloatsRoundTrip) {
  const std::vector<float> values = {1.0f, -0.5f, 2.25f, 0.0f, -8.0f, 3.0f};
  for (const v1::DType dtype : {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16, v1::DTYPE_F8_E4M3}) {
    const auto tensor = client::TensorFromFloats(values, {2, 3}, dtype);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(static_cast<int64_t>(tensor->data().size()), 6 * client::DTypeBytes(dtype));
    EXPECT_EQ(client::FloatsFromTensor(*tensor).value(), values);
  }
}

TEST(TensorTest, SizesThatDoNotMatchAreErrors) {
  const std::vector<float> values(6);
  EXPECT_FALSE(client::TensorFromFloats(values, {2, 4}, v1::DTYPE_F32).ok());
  EXPECT_FALSE(client::TensorFromFloats(values, {-2, -3}, v1::DTYPE_F32).ok());
  EXPECT_FALSE(client::TensorFromFloats(values, {2, 3}, v1::DTYPE_UNSPECIFIED).ok());
  EXPECT_FALSE(client::TensorFromFloats(values, {int64_t{1} << 62, 4}, v1::DTYPE_F32).ok());
  EXPECT_FALSE(client::TensorFromFloats({}, {int64_t{1} << 62}, v1::DTYPE_F32).ok());
  EXPECT_TRUE(client::TensorFromFloats({}, {int64_t{1} << 62, 4, 0}, v1::DTYPE_F32).ok());
  v1::Tensor tensor = client::TensorFromFloats(values, {6}, v1::DTYPE_F32).value();
  tensor.mutable_data()->pop_back();
  EXPECT_FALSE(client::FloatsFromTensor(tensor).ok());
  const std::vector<int64_t> shape = {5};
  EXPECT_FALSE(
      client::TensorFromBytes(std::as_bytes(std::span(values)), shape, v1::DTYPE_F32).ok());
}

}  // namespace
}  // namespace nibble
