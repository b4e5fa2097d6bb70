#include "kernels/cuda/device/dequantize_ordered.cuh"
#include "kernels/cuda/launch/dequantize.h"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {

cudaError_t LaunchDequantizeOrdered(const WeightView& view, int32_t row_begin, int32_t rows,
                                    void* out, Element out_type, int64_t out_stride,
                                    cudaStream_t stream) {
  if (view.codes_kind != Codes::kInt4) return cudaErrorInvalidValue;
  const dim3 grid = GridFor(rows * ((int64_t{view.k} + 7) / 8), kOrderedThreads);
  const auto launch = [&](auto* to, auto kernel) {
    kernel<<<grid, kOrderedThreads, 0, stream>>>(view, row_begin, rows, to, out_stride);
    return cudaGetLastError();
  };
  switch (out_type) {
    case Element::kF32:
      return launch(static_cast<float*>(out), DequantizeOrderedKernel<Int4Format, float>);
    case Element::kF16:
      return launch(static_cast<__half*>(out), DequantizeOrderedKernel<Int4Format, __half>);
    case Element::kBF16:
      return launch(static_cast<__nv_bfloat16*>(out),
                    DequantizeOrderedKernel<Int4Format, __nv_bfloat16>);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda
