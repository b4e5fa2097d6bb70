// Tensor maps of matrices of bytes in device memory, for copies of boxes with the 128-byte swizzle.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_

#include <cuda.h>

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// Boxes of `box_rows` rows x 128 bytes. Rows start at multiples of 16 bytes.
cudaError_t MakeRowsMap(const void* data, int64_t rows, int64_t row_bytes, int64_t stride_bytes,
                        int box_rows, CUtensorMap& map);

// Boxes of `box_units` units, each of `box_rows` rows x 128 bytes, of an FP8 weight: coordinates
// are byte of the unit, row, unit.
cudaError_t MakeUnitMap(const WeightView& view, int box_rows, int box_units, CUtensorMap& map);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_
