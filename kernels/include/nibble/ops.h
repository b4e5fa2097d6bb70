// The operations: their arguments as views of memory that the device can reach, and the checks that
// are the same for every backend. M is the number of rows; M = 0 is legal and does nothing.
#ifndef NIBBLE_OPS_H_
#define NIBBLE_OPS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "nibble/format.h"
#include "nibble/status.h"
#include "nibble/tensor.h"
#include "nibble/weight.h"

namespace nibble {

enum class Op : uint8_t { kMatmul, kDequantize, kNormQuant, kSiluMulQuant };

// "matmul", "dequantize", "norm_quant", "silu_mul_quant".
std::string_view OpName(Op op);

// Inputs that share one scale along K in per-group quantization.
inline constexpr int64_t kQuantGroup = 128;

// Smallest scale a dynamic quantizer returns, so that a row of zeros gives codes of 0 and not 0/0.
inline constexpr float kMinQuantScale = 0x1p-100f;

enum class QuantMode : uint8_t {
  kNone,      // no quantization
  kPerToken,  // one scale a row, from the row's largest magnitude
  kPerGroup,  // one scale per row and 128 columns (the last group may be shorter)
  kStatic,    // one scale for all, given
};

std::string_view QuantModeName(QuantMode mode);

// Scales per row of `cols` columns: 0 for kNone, 1 for kPerToken and kStatic, ceil(cols / 128) for
// kPerGroup.
int64_t ScalesPerRow(QuantMode mode, int64_t cols);

// y[M, N] = x[M, K] * W^T + bias, accumulated in FP32, rounded once to y.dtype.
//
// Activations:
//   x F32, F16, BF16, activation kNone      used as they are
//   x F32, F16, BF16, another activation    quantized to E4M3 first: per token, per 1x128 group or
//                                           with static_scale; only for kFP8 weights
//   x F8_E4M3 with x_scales F32             already quantized: x_scales [M, 1] (kPerToken;
//                                           row_stride 0 repeats one static scale) or
//                                           [M, ceil(K/128)] (kPerGroup); only for kFP8 weights
struct MatmulArgs {
  const DeviceWeight* weight = nullptr;
  ConstMatrixView x;         // [M, K]
  ConstMatrixView x_scales;  // empty unless x is F8_E4M3
  QuantMode activation = QuantMode::kNone;
  float static_scale = 1.0f;  // for kStatic with a 16- or 32-bit x
  MatrixView y;               // [M, N], F32, F16 or BF16
};

// out[rows, K] = rows [row_begin, row_begin + out.rows) of the decoded weight, rounded once to
// out.dtype (F32, F16, BF16), bit-exact with the library that defined the format.
struct DequantizeArgs {
  const DeviceWeight* weight = nullptr;
  int64_t row_begin = 0;
  MatrixView out;
};

// How rows are quantized on the way out. q = saturate(v / scale) to nearest even;
// scale = max(amax / 448 (E4M3) or amax / 127 (I8), kMinQuantScale), or static_scale.
struct OutputQuant {
  QuantMode mode = QuantMode::kNone;
  float static_scale = 1.0f;  // for kStatic; finite, above 0
};

//   h = round(x + residual), or x without a residual; written to residual_out
//   t = round(h * rsqrt(mean(h^2) + epsilon)), the mean over d in FP32
//   v = round(t * gamma)
//   y, scales = quantize(v), or y = v for QuantMode::kNone
//
// round() is to x.dtype. Each is where the unfused sequence of ops would store a tensor, so both
// agree bit for bit.
struct NormQuantArgs {
  ConstMatrixView x;         // [M, d] F32, F16 or BF16
  ConstMatrixView residual;  // [M, d] of x.dtype, or empty
  ConstMatrixView gamma;     // [1, d] F32, F16 or BF16
  float epsilon = 1e-6f;     // finite, >= 0
  OutputQuant quant;
  MatrixView y;       // [M, d]: F8_E4M3 or I8 when quantized, else x.dtype
  MatrixView scales;  // F32 [M, ScalesPerRow]; empty for kNone and kStatic
  MatrixView
      residual_out;  // [M, d] of x.dtype: h. Empty exactly when residual is; may alias residual
};

// x = [gate | up], t = round(silu(gate)), v = round(t * up), rounded to x.dtype;
// silu(g) = g / (1 + exp(-g)). y, scales = quantize(v), or v itself for kNone.
struct SiluMulQuantArgs {
  ConstMatrixView x;  // [M, 2d] F32, F16 or BF16
  OutputQuant quant;
  MatrixView y;       // [M, d]
  MatrixView scales;  // as in NormQuantArgs
};

// Shapes, dtypes, pointers and values of the arguments; kInvalidArgument names the field, what was
// expected and what was received. Backends call these first; callers may rely on it.
Status ValidateMatmul(const MatmulArgs& args);
Status ValidateDequantize(const DequantizeArgs& args);
Status ValidateNormQuant(const NormQuantArgs& args);
Status ValidateSiluMulQuant(const SiluMulQuantArgs& args);

}  // namespace nibble

#endif  // NIBBLE_OPS_H_
