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

template <int kRank>
cudaError_t Make(const void* data, const cuuint64_t (&sizes)[kRank],
                 const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank],
                 CUtensorMap& map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint32_t steps[kRank];
  for (cuuint32_t& step : steps) step = 1;
  const CUresult made =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, kRank, const_cast<void*>(data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t MakeRowsMap(const void* data, int64_t rows, int64_t row_bytes, int64_t stride_bytes,
                        int box_rows, CUtensorMap& map) {
  return Make<2>(data, {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)},
                 {static_cast<cuuint64_t>(stride_bytes)},
                 {kUnitInputs, static_cast<cuuint32_t>(box_rows)}, map);
}

cudaError_t MakeUnitMap(const WeightView& view, int box_rows, int box_units, CUtensorMap& map) {
  const cuuint64_t rows = (static_cast<cuuint64_t>(view.n) + kUnitRows - 1) / kUnitRows * kUnitRows;
  const cuuint64_t units = static_cast<cuuint64_t>(view.units);
  return Make<3>(
      view.codes, {kUnitInputs, rows, units}, {units * kUnitInputs, kUnitInputs},
      {kUnitInputs, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_units)}, map);
}

}  // namespace nibble::cuda
