#include "nibble/numeric.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A small float by its definition: sign, exponent and mantissa fields, value by powers of two.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;
  double Decode(uint32_t bits) const {
    const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    const uint32_t exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1);
    const double sign = (bits >> (mantissa_bits + exponent_bits)) != 0 ? -1.0 : 1.0;
    const uint32_t top = (1u << exponent_bits) - 1;
    if (has_infinity && exponent == top) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
    if (!has_infinity && exponent == top && mantissa == (1u << mantissa_bits) - 1) {
      return std::nan("");
    }
    const double unit = std::ldexp(1.0, 1 - bias - mantissa_bits);
    if (exponent == 0) return sign * mantissa * unit;
    return sign *
           std::ldexp((mantissa + (1u << mantissa_bits)) * unit, static_cast<int>(exponent) - 1);
  }
  // Codes of 0 and of the positive finite values, in order: 0, 1, 2, ...
  uint32_t LastFinite() const {
    const uint32_t top = ((1u << exponent_bits) - 1) << mantissa_bits;
    return has_infinity ? top - 1 : top + (1u << mantissa_bits) - 2;
  }
  uint32_t SignBit() const { return 1u << (exponent_bits + mantissa_bits); }
};

constexpr SmallFloat kF16{5, 10, 15, true};
constexpr SmallFloat kBF16{8, 7, 127, true};
constexpr SmallFloat kE4M3{4, 3, 7, false};

void ExpectDecodesEveryCode(const SmallFloat& type, const std::function<float(uint32_t)>& decode) {
  for (uint32_t bits = 0; bits < 2 * type.SignBit(); ++bits) {
    const double expected = type.Decode(bits);
    const float received = decode(bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(received)) << "code " << bits;
    } else {
      EXPECT_EQ(received, expected) << "code " << bits;
    }
    EXPECT_EQ(std::signbit(received), bits >= type.SignBit()) << "code " << bits;
  }
}

// Every finite value, every midpoint between neighbours and the binary32 numbers next to those,
// with both signs.
void ExpectRoundsToNearestEven(const SmallFloat& type,
                               const std::function<uint32_t(float)>& encode) {
  const auto expect = [&](float value, uint32_t code) {
    EXPECT_EQ(encode(value), code) << value;
    EXPECT_EQ(encode(-value), code | type.SignBit()) << -value;
  };
  for (uint32_t code = 0; code <= type.LastFinite(); ++code) {
    const auto value = static_cast<float>(type.Decode(code));
    expect(value, code);
    if (code == type.LastFinite()) continue;
    const auto middle = static_cast<float>((type.Decode(code) + type.Decode(code + 1)) / 2);
    expect(middle, code + code % 2);
    expect(std::nextafter(middle, 0.0f), code);
    expect(std::nextafter(middle, kInfinity), code + 1);
  }
}

TEST(F16, DecodesEveryCode) {
  ExpectDecodesEveryCode(kF16, [](uint32_t b) { return F16ToFloat(static_cast<uint16_t>(b)); });
}

TEST(F16, RoundsToNearestEven) { ExpectRoundsToNearestEven(kF16, FloatToF16); }

TEST(F16, OverflowsToInfinityHalfAStepPastTheLargest) {
  EXPECT_EQ(FloatToF16(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7C00);
  EXPECT_EQ(FloatToF16(-65520.0f), 0xFC00);
  EXPECT_EQ(FloatToF16(std::numeric_limits<float>::max()), 0x7C00);
  EXPECT_EQ(FloatToF16(kInfinity), 0x7C00);
  EXPECT_EQ(FloatToF16(-kInfinity), 0xFC00);
}

TEST(F16, BelowHalfTheSmallestIsZeroWithItsSign) {
  EXPECT_EQ(FloatToF16(0x1p-25f), 0x0000);
  EXPECT_EQ(FloatToF16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(FloatToF16(-0x1p-149f), 0x8000);
}

TEST(BF16, DecodesEveryCode) {
  ExpectDecodesEveryCode(kBF16, [](uint32_t b) { return BF16ToFloat(static_cast<uint16_t>(b)); });
}

TEST(BF16, RoundsToNearestEven) { ExpectRoundsToNearestEven(kBF16, FloatToBF16); }

TEST(BF16, OverflowsToInfinityHalfAStepPastTheLargest) {
  EXPECT_EQ(FloatToBF16(std::nextafter(0x1.FFp127f, 0.0f)), 0x7F7F);
  EXPECT_EQ(FloatToBF16(0x1.FFp127f), 0x7F80);
  EXPECT_EQ(FloatToBF16(-0x1.FFp127f), 0xFF80);
  EXPECT_EQ(FloatToBF16(kInfinity), 0x7F80);
}

TEST(E4M3, DecodesEveryCode) {
  ExpectDecodesEveryCode(kE4M3, [](uint32_t b) { return F8E4M3ToFloat(static_cast<uint8_t>(b)); });
}

TEST(E4M3, RoundsToNearestEven) { ExpectRoundsToNearestEven(kE4M3, FloatToF8E4M3); }

TEST(E4M3, Saturates) {
  for (float value : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(FloatToF8E4M3(value), 0x7E) << value;
    EXPECT_EQ(FloatToF8E4M3(-value), 0xFE) << value;
  }
}

// Payloads that a plain truncation would turn into infinity are among them.
TEST(SmallFloats, NaNStaysNaN) {
  for (uint32_t payload : {0x00000001u, 0x00001FFFu, 0x0000FFFFu, 0x00400000u, 0x007FFFFFu}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const auto value = std::bit_cast<float>(sign | 0x7F800000u | payload);
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(value)))) << payload;
      EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(value)))) << payload;
      EXPECT_EQ(FloatToF8E4M3(value), sign != 0 ? 0xFF : 0x7F) << payload;
    }
  }
}

TEST(SmallFloats, EveryNaNCodeRoundTripsToNaN) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto code = static_cast<uint16_t>(bits);
    if (std::isnan(F16ToFloat(code))) {
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(F16ToFloat(code)))));
    }
    if (std::isnan(BF16ToFloat(code))) {
      EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(BF16ToFloat(code)))));
    }
  }
}

TEST(StoreFromFloat, I8RoundsToEvenAndSaturates) {
  const std::vector<std::pair<float, int>> cases = {
      {0.5f, 0},     {1.5f, 2},     {-0.5f, 0},       {-1.5f, -2},       {2.5f, 2},
      {126.5f, 126}, {127.4f, 127}, {127.5f, 127},    {1e9f, 127},       {-128.4f, -128},
      {-1e9f, -128}, {kNaN, 0},     {kInfinity, 127}, {-kInfinity, -128}};
  for (const auto& [value, expected] : cases) {
    int8_t stored = 99;
    StoreFromFloat(&stored, DType::kI8, 0, value);
    EXPECT_EQ(stored, expected) << value;
    EXPECT_EQ(LoadAsFloat(&stored, DType::kI8, 0), static_cast<float>(expected));
  }
}

TEST(StoreFromFloat, WritesOnlyItsElementAtAnyAlignment) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8}) {
    const size_t size = DTypeBytes(dtype);
    std::vector<unsigned char> bytes(1 + 3 * size, 0xA5);
    StoreFromFloat(bytes.data() + 1, dtype, 1, -2.0f);
    EXPECT_EQ(LoadAsFloat(bytes.data() + 1, dtype, 1), -2.0f) << DTypeName(dtype);
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (i >= 1 + size && i < 1 + 2 * size) continue;
      EXPECT_EQ(bytes[i], 0xA5) << DTypeName(dtype);
    }
  }
}

TEST(RoundTo, IsExactForRepresentableValuesAndKeepsSigns) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    EXPECT_EQ(RoundTo(dtype, 1.75f), 1.75f) << DTypeName(dtype);
    EXPECT_TRUE(std::signbit(RoundTo(dtype, -0.0f))) << DTypeName(dtype);
  }
  EXPECT_EQ(RoundTo(DType::kF32, 0.1f), 0.1f);
  EXPECT_EQ(RoundTo(DType::kBF16, 0.1f), 0.10009765625f);
}

}  // namespace
}  // namespace nibble
