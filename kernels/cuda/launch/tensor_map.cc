#include "kernels/cuda/launch/tensor_map.h"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver is opened at run time.
Encode FindEncode() {
  constexpr unsigned kSince = 12000;  // the version of CUDA
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             kSince, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(function);
}

}  // namespace

cudaError_t EncodeTensorMap(const TensorBox& box, const void* data, CUtensorMap& map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, box.type, static_cast<cuuint32_t>(box.rank), const_cast<void*>(data), box.size,
             box.stride, box.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             box.swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t MakeRowsMap(const void* data, int64_t rows, int64_t row_bytes, int64_t stride_bytes,
                        int box_rows, CUtensorMap& map) {
  TensorBox box;
  box.size[0] = static_cast<uint64_t>(row_bytes);
  box.size[1] = static_cast<uint64_t>(rows);
  box.stride[0] = static_cast<uint64_t>(stride_bytes);
  box.box[0] = kUnitInputs;
  box.box[1] = static_cast<uint32_t>(box_rows);
  box.swizzle = true;
  return EncodeTensorMap(box, data, map);
}

cudaError_t MakeUnitMap(const WeightView& view, int box_rows, int box_units, CUtensorMap& map) {
  TensorBox box;
  box.rank = 3;
  box.size[0] = kUnitInputs;
  box.size[1] = static_cast<uint64_t>(PaddedRows(view.n));
  box.size[2] = static_cast<uint64_t>(view.units);
  box.stride[0] = box.size[2] * kUnitInputs;
  box.stride[1] = kUnitInputs;
  box.box[0] = kUnitInputs;
  box.box[1] = static_cast<uint32_t>(box_rows);
  box.box[2] = static_cast<uint32_t>(box_units);
  box.swizzle = true;
  return EncodeTensorMap(box, view.codes, map);
}

}  // namespace nibble::cuda
