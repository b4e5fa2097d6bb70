#include "kernels/cpu/quantize_rows.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "kernels/cpu/convert.h"
#include "nibble/numeric.h"

namespace nibble::cpu {
namespace {

// Largest magnitude. Magnitudes are compared as integers, where a NaN is above every number.
float AbsMax(const float* v, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(v[i]) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(largest);
}

float DynamicScale(float amax, DType dtype) {
  const float scale = amax / (dtype == DType::kI8 ? 127.0f : 448.0f);
  return scale < kMinQuantScale ? kMinQuantScale : scale;  // a NaN stays
}

void QuantizeBlock(const float* v, int64_t count, float scale, DType dtype, std::byte* y) {
  for (int64_t i = 0; i < count; i += kQuantGroup) {
    const int64_t size = std::min(kQuantGroup, count - i);
    float scaled[kQuantGroup];
    for (int64_t j = 0; j < size; ++j) scaled[j] = v[i + j] / scale;
    StoreFloats(scaled, size, dtype, y + i);
  }
}

// Columns that share a scale.
int64_t ScaleColumns(QuantMode mode, int64_t cols) {
  return mode == QuantMode::kPerGroup ? kQuantGroup : cols;
}

float ScaleOf(const float* v, int64_t count, const OutputQuant& quant, DType dtype) {
  return quant.mode == QuantMode::kStatic ? quant.static_scale
                                          : DynamicScale(AbsMax(v, count), dtype);
}

}  // namespace

void QuantizeRow(const float* v, int64_t cols, const OutputQuant& quant, DType dtype, void* y,
                 void* scales) {
  const int64_t shared = ScaleColumns(quant.mode, cols);
  for (int64_t i = 0; i < cols; i += shared) {
    const int64_t count = std::min(shared, cols - i);
    const float scale = ScaleOf(v + i, count, quant, dtype);
    QuantizeBlock(v + i, count, scale, dtype, static_cast<std::byte*>(y) + i);
    if (scales != nullptr) StoreFromFloat(scales, DType::kF32, i / shared, scale);
  }
}

void QuantizeAndDecodeRow(float* v, int64_t cols, const OutputQuant& quant) {
  const int64_t shared = ScaleColumns(quant.mode, cols);
  for (int64_t i = 0; i < cols; i += shared) {
    const int64_t count = std::min(shared, cols - i);
    const float scale = ScaleOf(v + i, count, quant, DType::kF8E4M3);
    for (int64_t j = 0; j < count; j += kQuantGroup) {
      const int64_t size = std::min(kQuantGroup, count - j);
      float* block = v + i + j;
      std::byte codes[kQuantGroup];
      QuantizeBlock(block, size, scale, DType::kF8E4M3, codes);
      LoadFloats(codes, DType::kF8E4M3, size, block);
      for (int64_t l = 0; l < size; ++l) block[l] *= scale;
    }
  }
}

void RoundRow(float* v, int64_t cols, DType dtype) {
  if (dtype == DType::kF32) return;
  for (int64_t i = 0; i < cols; i += kQuantGroup) {
    const int64_t size = std::min(kQuantGroup, cols - i);
    std::byte rounded[kQuantGroup * sizeof(float)];
    StoreFloats(v + i, size, dtype, rounded);
    LoadFloats(rounded, dtype, size, v + i);
  }
}

}  // namespace nibble::cpu
