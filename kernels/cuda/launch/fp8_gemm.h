// Launchers of the FP8 matmul on compute capability 9.0, and of what makes its activations ready.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_FP8_GEMM_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_FP8_GEMM_H_

#include "kernels/cuda/device/args.cuh"

namespace nibble::cuda {

// Rows whose scales are read where there are fewer.
inline constexpr int64_t kFp8RowUnit = 128;

struct Fp8Activations {
  const uint8_t* codes = nullptr;  // [m, k], rows at multiples of 16 bytes
  int64_t stride = 0;
  const float* scales = nullptr;  // of row m and step i: [i * step_stride + m * row_stride]
  int64_t row_stride = 1;
  int64_t step_stride = 0;
};

// Quantizes 16- and 32-bit rows, or copies codes. `codes` [m, stride], stride is k rounded up to a
// multiple of 16, bytes past k become 0; scales [steps][step_stride].
cudaError_t LaunchFp8Quantize(const ActivationArgs& args, uint8_t* codes, int32_t stride,
                              float* scales, int64_t step_stride, cudaStream_t stream);
cudaError_t LaunchFp8CopyCodes(const ActivationArgs& args, uint8_t* codes, int32_t stride,
                               cudaStream_t stream);
cudaError_t LaunchFp8CopyScales(const ActivationArgs& args, int32_t steps, float* scales,
                                int64_t step_stride, cudaStream_t stream);

struct Fp8GemmLaunch {
  Fp8Activations x;
  int64_t m = 0;
  // Scales change along K: those of x lie side by side, and can be read up to a multiple of
  // kFp8RowUnit rows.
  bool blocks = false;
  void* y = nullptr;
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
  int multiprocessors = 1;
};

// y [m, N] = x W^T + bias, scales of the weight constant over each 128 inputs.
cudaError_t LaunchFp8Gemm(const WeightView& view, const Fp8GemmLaunch& launch, cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_FP8_GEMM_H_
