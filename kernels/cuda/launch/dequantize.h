// Launcher of the dequantize kernel.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_DEQUANTIZE_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_DEQUANTIZE_H_

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// Inputs in the order they are stored in. out [rows, out_cols] of out_type (F32, F16, BF16), rows
// out_stride elements apart = rows [row_begin, row_begin + rows) of the decoded weight, columns
// past K as 0. rows > 0.
cudaError_t LaunchDequantize(const WeightView& view, int32_t row_begin, int32_t rows, void* out,
                             Element out_type, int64_t out_stride, int32_t out_cols,
                             cudaStream_t stream);

// The same for a weight with a column_order, its inputs in the order of the weight.
cudaError_t LaunchDequantizeOrdered(const WeightView& view, int32_t row_begin, int32_t rows,
                                    void* out, Element out_type, int64_t out_stride,
                                    cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_DEQUANTIZE_H_
