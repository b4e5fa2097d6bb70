// Descriptions of tensors in device memory for the copy engine (TMA) of compute capability 9.0.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

namespace nibble::cuda {

// Sizes in elements, innermost first; strides in bytes, a multiple of 16, of the outer dimensions.
struct TensorBox {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  int rank = 2;  // 2 or 3
  uint64_t size[3] = {};
  uint64_t stride[2] = {};
  uint32_t box[3] = {};
  bool swizzle = false;  // 128 bytes, which is then the innermost size of the box
};

// cudaErrorNotSupported where the driver has no tensor maps, cudaErrorInvalidValue where it refuses
// this one.
cudaError_t EncodeTensorMap(const TensorBox& box, const void* data, CUtensorMap& map);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_TENSOR_MAP_H_
