// Conversions between binary32 and the small floats, exact to the bit. Host code only.
// Sources: IEEE 754 for binary16; OCP 8-bit floating point (E4M3) for float8.
#ifndef NIBBLE_NUMERIC_H_
#define NIBBLE_NUMERIC_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "nibble/tensor.h"

namespace nibble {

// Round to nearest even; a NaN stays a quiet NaN.
inline uint16_t FloatToBF16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x0040u);
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

inline float BF16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; subnormals kept, overflow to infinity, a NaN stays a quiet NaN.
inline uint16_t FloatToF16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((u >> 13) & 0x1FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds past 65504
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the binary16 subnormal, rounded, in the low mantissa bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float F16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// E4M3 ("fn"): no infinity, NaN is 0x7F and 0xFF, largest finite value 448.
inline float F8E4M3ToFloat(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 0xFu;
  const uint32_t mantissa = bits & 0x7u;
  if ((bits & 0x7Fu) == 0x7Fu) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// Round to nearest even, saturating to +-448 (infinities too); a NaN stays a NaN.
inline uint8_t FloatToF8E4M3(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448 and above
  if (magnitude < 0x3C800000u) {
    // Below 2^-6: adding 2^14 leaves the subnormal, rounded, in the low mantissa bits.
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3C000000u) >> 20));
}

// Element `index` of an array of `dtype` at `data`, which need not be aligned. I8 is converted by
// value.
inline float LoadAsFloat(const void* data, DType dtype, int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(data) + index * DTypeBytes(dtype);
  uint32_t word = 0;
  std::memcpy(&word, bytes, DTypeBytes(dtype));
  switch (dtype) {
    case DType::kF32:
      return std::bit_cast<float>(word);
    case DType::kF16:
      return F16ToFloat(static_cast<uint16_t>(word));
    case DType::kBF16:
      return BF16ToFloat(static_cast<uint16_t>(word));
    case DType::kF8E4M3:
      return F8E4M3ToFloat(static_cast<uint8_t>(word));
    case DType::kI8:
      return static_cast<float>(static_cast<int8_t>(word));
  }
  return 0.0f;
}

// Stores `value` as element `index` of an array of `dtype`, rounded once to nearest even. F8_E4M3
// saturates to +-448, I8 to [-128, 127]; a NaN becomes I8 0.
inline void StoreFromFloat(void* data, DType dtype, int64_t index, float value) {
  auto* bytes = static_cast<unsigned char*>(data) + index * DTypeBytes(dtype);
  uint32_t word = 0;
  switch (dtype) {
    case DType::kF32:
      word = std::bit_cast<uint32_t>(value);
      break;
    case DType::kF16:
      word = FloatToF16(value);
      break;
    case DType::kBF16:
      word = FloatToBF16(value);
      break;
    case DType::kF8E4M3:
      word = FloatToF8E4M3(value);
      break;
    case DType::kI8: {
      const float clamped = value < -128.0f ? -128.0f : (value > 127.0f ? 127.0f : value);
      word = static_cast<uint8_t>(std::isnan(value) ? int8_t{0}
                                                    : static_cast<int8_t>(std::nearbyint(clamped)));
      break;
    }
  }
  std::memcpy(bytes, &word, DTypeBytes(dtype));
}

// `value` rounded to `dtype` and widened again.
inline float RoundTo(DType dtype, float value) {
  uint32_t word = 0;
  StoreFromFloat(&word, dtype, 0, value);
  return LoadAsFloat(&word, dtype, 0);
}

}  // namespace nibble

#endif  // NIBBLE_NUMERIC_H_
