// Tensor maps: descriptions of tensors in device memory for the copy engine (TMA) of compute
// capability 9.0.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_

#include <cstdint>

#include <cuda.h>

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// Sizes in elements, innermost first; strides in bytes, multiples of 16, of the outer dimensions.
struct TensorBox {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  int rank = 2;  // 2 or 3
  uint64_t size[3] = {};
  uint64_t stride[2] = {};
  uint32_t box[3] = {};
  bool swizzle = false;  // of 128 bytes, which is then the innermost size of the box
};

// cudaErrorNotSupported where the driver has no tensor maps, cudaErrorInvalidValue where it refuses
// this one.
cudaError_t EncodeTensorMap(const TensorBox& box, const void* data, CUtensorMap& map);

// Swizzled boxes of `box_rows` rows x 128 bytes of a matrix of bytes. Rows start at multiples of 16
// bytes.
cudaError_t MakeRowsMap(const void* data, int64_t rows, int64_t row_bytes, int64_t stride_bytes,
                        int box_rows, CUtensorMap& map);

// Swizzled boxes of `box_units` units, each of `box_rows` rows x 128 bytes, of an FP8 weight:
// coordinates are byte of the unit, row, unit.
cudaError_t MakeUnitMap(const WeightView& view, int box_rows, int box_units, CUtensorMap& map);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_
