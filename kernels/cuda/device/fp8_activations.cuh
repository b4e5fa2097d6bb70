// Activations of the FP8 matmul: codes in rows of whole 16 bytes, and scales by steps of K.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_FP8_ACTIVATIONS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_FP8_ACTIVATIONS_CUH_

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/quantize_rows.cuh"

namespace nibble::cuda {

inline constexpr int kFp8RowThreads = 256;

// Where they go. Bytes of a row past column k become 0.
struct Fp8Rows {
  uint8_t* codes = nullptr;
  int32_t stride = 0;       // of codes: k rounded up to a multiple of 16
  float* scales = nullptr;  // of row m and step i: [i * step_stride + m]
  int64_t step_stride = 0;
};

// x quantized per token, per group or with a static scale. One block a row. kVector: k is a
// multiple of 8 and rows of x are aligned to 16 bytes.
template <class T, bool kVector>
__global__ void __launch_bounds__(kFp8RowThreads)
    QuantizeActivationsKernel(const __grid_constant__ ActivationArgs args, Fp8Rows to) {
  LaunchDependents();
  WaitForDependencies();
  __shared__ uint32_t scratch[kMaxWarps];
  constexpr int32_t kStep = kFp8RowThreads * 8;
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 8;
  float scale = args.static_scale;
  float amax = 0.0f;
  if (args.quant == Quant::kPerToken) {
    uint32_t largest = 0;
    for (int32_t col = first; col < args.k; col += kStep) {
      largest = max(largest, LargestMagnitude(LoadEight<kVector>(x, col, args.k)));
    }
    amax = MagnitudeToFloat<T>(BlockMax(largest, scratch));
    scale = DynamicScale(amax, false);
  }
  const bool grouped = args.quant == Quant::kPerGroup;
  const bool fixed = args.quant == Quant::kStatic;
  if (!grouped && threadIdx.x == 0) to.scales[row] = scale;
  // Whole warps, which find the largest of a group together.
  for (int32_t begin = 0; begin < to.stride; begin += kStep) {
    const int32_t col = begin + first;
    const Eight<T> v = LoadEight<kVector>(x, col, args.k);
    if (grouped || fixed) {
      const uint32_t largest = LargestMagnitude(v);
      amax = MagnitudeToFloat<T>(grouped ? GroupMax(largest) : largest);
      if (grouped) scale = DynamicScale(amax, false);
    }
    if (col >= to.stride) continue;
    if (grouped && col % kGroupColumns == 0) {
      to.scales[col / kGroupColumns * to.step_stride + row] = scale;
    }
    const uint2 codes = QuantizeEight(v, Divider(scale), amax, false);
    *reinterpret_cast<uint2*>(to.codes + row * to.stride + col) = codes;
  }
}

// Codes that are there already. 16 bytes a thread.
__global__ void __launch_bounds__(kFp8RowThreads)
    CopyCodesKernel(const uint8_t* x, int64_t x_stride, int64_t m, int32_t k, uint8_t* to,
                    int32_t stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kFp8RowThreads + threadIdx.x;
  const int32_t pieces = stride / 16;
  if (index >= m * pieces) return;
  const int64_t row = index / pieces;
  const auto col = static_cast<int32_t>(index % pieces) * 16;
  uint32_t words[4] = {};
  for (int i = 0; i < 16; ++i) {
    if (col + i < k) words[i / 4] |= uint32_t{x[row * x_stride + col + i]} << (8 * (i % 4));
  }
  *reinterpret_cast<uint4*>(to + row * stride + col) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

// to[i * step_stride + m] = scales[m * stride + i], i < steps.
__global__ void __launch_bounds__(kFp8RowThreads)
    CopyScalesKernel(const float* scales, int64_t stride, int64_t m, int32_t steps, float* to,
                     int64_t step_stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kFp8RowThreads + threadIdx.x;
  if (index >= m * steps) return;
  const int64_t row = index % m;
  const int64_t step = index / m;
  to[step * step_stride + row] = scales[row * stride + step];
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_FP8_ACTIVATIONS_CUH_
