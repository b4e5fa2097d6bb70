// The inner loops of the quantizers, by the fastest instruction set of the machine. Results are the
// same bits on every one.
#ifndef NIBBLE_KERNELS_QUANTIZE_ENCODE_H_
#define NIBBLE_KERNELS_QUANTIZE_ENCODE_H_

#include <cstddef>
#include <cstdint>

namespace nibble::quantize {

// Largest magnitude of values[0, count), 0 for none. Infinity is above every number and NaN above
// infinity, so that the values are finite exactly when the result is.
float MaxMagnitude(const float* values, int64_t count);

struct Range {
  float low = 0.0f;
  float high = 0.0f;
};
// The smallest and largest of finite values[0, count) and 0.
Range RangeOf(const float* values, int64_t count);

// A 4-bit code by thresholds: the code of u is codes[number of thresholds below u].
struct CodeTable {
  float thresholds[15];  // ascending
  uint8_t codes[16];
};

// codes: byte i holds the code of values[2i] * factor in its high nibble, that of values[2i + 1] *
// factor in its low one; an odd count's spare nibble holds the code of 0. ceil(count / 2) bytes.
// by_division: values / factor instead.
void EncodeTable(const CodeTable& table, const float* values, int64_t count, float factor,
                 bool by_division, std::byte* codes);

// codes: byte i holds clamp(round(values[2i] / scale) + zero, 0, 15) in its low nibble, that of
// values[2i + 1] in its high one; an odd count's spare nibble is 0. |values / scale| < 2^22.
void EncodeInt4(const float* values, int64_t count, float scale, int zero, std::byte* codes);

// Sum of squares of values - (code - zero) * scale, of the codes that EncodeInt4 would give, in
// binary32.
float Int4SquaredError(const float* values, int64_t count, float scale, int zero);

// out[i] = values[i] / scale.
void DivideBy(float scale, const float* values, int64_t count, float* out);

}  // namespace nibble::quantize

#endif  // NIBBLE_KERNELS_QUANTIZE_ENCODE_H_
