// Arguments of the row and activation kernels. Host code includes this header too.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ARGS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ARGS_CUH_

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// In the order of nibble::QuantMode.
enum class Quant : int { kNone, kPerToken, kPerGroup, kStatic };

// Strides in elements. `vector`: every row starts at a multiple of 8 elements and 16 bytes, and d
// is one.
struct RowOpArgs {
  const void* x = nullptr;  // [m, d] or, for silu, [m, 2d]
  int64_t x_stride = 0;
  const void* residual = nullptr;
  int64_t residual_stride = 0;
  void* residual_out = nullptr;
  int64_t residual_out_stride = 0;
  const void* gamma = nullptr;
  Element gamma_type = Element::kF32;
  float epsilon = 0.0f;
  Quant quant = Quant::kNone;
  float static_scale = 1.0f;
  void* y = nullptr;
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
  float* scales = nullptr;
  int64_t scales_stride = 0;
  int64_t m = 0;
  int32_t d = 0;
  bool vector = false;
};

struct ActivationArgs {
  const void* x = nullptr;  // [m, k] of x_type
  Element x_type = Element::kF32;
  int64_t x_stride = 0;
  const float* x_scales = nullptr;  // of F8_E4M3 x: [m, 1] or [m, ceil(k / 128)]
  int64_t x_scales_stride = 0;
  Quant quant = Quant::kNone;
  float static_scale = 1.0f;
  // [k], or null: column j of the result is column order[j] of x. Only where quant is kNone.
  const int32_t* order = nullptr;
  int64_t m = 0;
  int32_t k = 0;
};

// Of a unit's inputs in a row of 16-bit x.
inline constexpr int kUnitXBytes = kUnitInputs * 2;

struct GemvArgs {
  const void* x = nullptr;  // [m, units * 128] 16-bit, rows start at multiples of 16 bytes
  int64_t x_stride = 0;
  const float* x_scales = nullptr;  // of each row, x_scales_stride apart, or null
  int64_t x_scales_stride = 0;
  int32_t m = 0;
  void* y = nullptr;  // [m, N]
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ARGS_CUH_
