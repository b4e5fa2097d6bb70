// Launchers of the kernels around a matmul: activations before it, bias and rounding after it.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_ACTIVATIONS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_ACTIVATIONS_H_

#include "kernels/cuda/device/args.cuh"

namespace nibble::cuda {

// out [m, k] binary32.
cudaError_t LaunchWidenActivations(const ActivationArgs& args, float* out, cudaStream_t stream);

// out [m, k_padded] of x's 16-bit type; k_padded is a multiple of 8, at most 67 million (of
// columns, of which blocks y take 1024 each: past that the launch fails as in grid.h).
cudaError_t LaunchPadActivations(const ActivationArgs& args, void* out, int32_t k_padded,
                                 cudaStream_t stream);

// The same with the columns arranged for wgmma, or for FP8 codes (`fp8`); k_padded is a multiple of
// 32.
cudaError_t LaunchArrangeActivations(const ActivationArgs& args, void* out, int32_t k_padded,
                                     bool fp8, cudaStream_t stream);

// F16 x = high + low, both BF16 [m, k_padded].
cudaError_t LaunchSplitActivations(const ActivationArgs& args, void* high, void* low,
                                   int32_t k_padded, cudaStream_t stream);

// y [m, n] = round(sums + bias); bias may be null.
cudaError_t LaunchBiasAndRound(const float* sums, int64_t sums_stride, const float* bias, int64_t m,
                               int32_t n, void* y, Element y_type, int64_t y_stride,
                               cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_ACTIVATIONS_H_
