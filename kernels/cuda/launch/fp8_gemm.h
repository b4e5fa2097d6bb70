// Launchers of the FP8 matmul on compute capability 9.0, of what makes its activations ready and of
// what finishes sums.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_FP8_GEMM_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_FP8_GEMM_H_

#include "kernels/cuda/device/args.cuh"
#include "kernels/cuda/device/fp8_args.cuh"

namespace nibble::cuda {

// Quantizes 16- and 32-bit rows, or copies codes: to bytes, or to BF16 numbers.
cudaError_t LaunchFp8Quantize(const ActivationArgs& args, const Fp8Rows& to, bool bf16,
                              cudaStream_t stream);
cudaError_t LaunchFp8CopyCodes(const ActivationArgs& args, const Fp8Rows& to, bool bf16,
                               cudaStream_t stream);
// One scale a row, which each step repeats, or one a step (per group).
cudaError_t LaunchFp8CopyScales(const ActivationArgs& args, const Fp8Rows& to, cudaStream_t stream);

cudaError_t LaunchFinish(const FinishArgs& args, cudaStream_t stream);

struct Fp8GemmLaunch {
  const void* codes = nullptr;  // [m, k], rows at multiples of 16 bytes
  int64_t codes_stride = 0;
  // Of row m and step i: [i * step_stride + m * row_stride]. With blocks they lie side by side, and
  // can be read up to a multiple of kFp8RowUnit rows.
  const float* x_scales = nullptr;
  int64_t x_row_stride = 1;
  int64_t x_step_stride = 0;
  int64_t m = 0;
  bool blocks = false;  // scales change along K
  void* y = nullptr;
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
  float* partials = nullptr;  // Fp8GemmPartialBytes
  int multiprocessors = 1;
};

inline constexpr int64_t kFp8RowUnit = 128;

// Scratch memory of LaunchFp8Gemm for up to m rows: a tile of sums a multiprocessor.
int64_t Fp8GemmPartialBytes(int64_t m, int multiprocessors);

// y [m, N] = x W^T + bias, scales of the weight constant over each 128 inputs.
cudaError_t LaunchFp8Gemm(const WeightView& view, const Fp8GemmLaunch& launch, cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_FP8_GEMM_H_
