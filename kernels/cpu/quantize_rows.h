// Dynamic and static quantization of computed rows, as OutputQuant of nibble/ops.h defines it. It
// is also how activations are quantized before an FP8 matmul.
#ifndef NIBBLE_KERNELS_CPU_QUANTIZE_ROWS_H_
#define NIBBLE_KERNELS_CPU_QUANTIZE_ROWS_H_

#include <cstdint>

#include "nibble/ops.h"
#include "nibble/tensor.h"

namespace nibble::cpu {

// y[i] = saturate(v[i] / scale), i in [0, cols): `dtype` is F8_E4M3 or I8. `scales` receives
// ScalesPerRow(quant.mode, cols) F32 values, or is null for kStatic. A NaN makes the scale of its
// row or group NaN, and the codes with it (I8: 0). `quant.mode` is not kNone.
void QuantizeRow(const float* v, int64_t cols, const OutputQuant& quant, DType dtype, void* y,
                 void* scales);

// v = f32(code * scale) of the codes that QuantizeRow would give in E4M3.
void QuantizeAndDecodeRow(float* v, int64_t cols, const OutputQuant& quant);

// v[i] = binary32 of v[i] rounded to `dtype`.
void RoundRow(float* v, int64_t cols, DType dtype);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_QUANTIZE_ROWS_H_
