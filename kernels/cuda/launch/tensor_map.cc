#include "kernels/cuda/launch/tensor_map.h"

#include <cudaTypedefs.h>

namespace nibble::cuda {
namespace {

using Encode = PFN_cuTensorMapEncodeTiled_v12000;

// Through the runtime: the module is not linked with the driver's library.
Encode FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(function);
}

}  // namespace

cudaError_t EncodeTensorMap(const TensorBox& box, const void* data, CUtensorMap& map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const uint32_t element_strides[3] = {1, 1, 1};
  const CUresult result = encode(
      &map, box.type, static_cast<cuuint32_t>(box.rank), const_cast<void*>(data), box.size,
      box.stride, box.box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      box.swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
