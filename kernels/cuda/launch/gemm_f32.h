// Launcher of the binary32 matmul.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_F32_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_F32_H_

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// y [m, N] of y_type = x [m, K] W^T + bias. Strides in elements; m > 0.
cudaError_t LaunchGemmF32(const WeightView& view, const float* x, int64_t x_stride, int64_t m,
                          void* y, Element y_type, int64_t y_stride, cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_F32_H_
