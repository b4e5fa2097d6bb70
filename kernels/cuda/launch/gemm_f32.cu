#include "kernels/cuda/launch/gemm_f32.h"

#include "kernels/cuda/device/gemm_f32.cuh"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {

cudaError_t LaunchGemmF32(const WeightView& view, const float* x, int64_t x_stride, int64_t m,
                          void* y, Element y_type, int64_t y_stride, cudaStream_t stream) {
  const int64_t tiles_m = (m + kF32TileM - 1) / kF32TileM;
  const int64_t tiles_n = (int64_t{view.n} + kF32TileN - 1) / kF32TileN;
  const dim3 grid = GridFor(tiles_m * tiles_n, 1);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, kF32Threads, 0, stream>>>(view, x, x_stride, m, y, y_type, y_stride);
    return cudaGetLastError();
  };
  switch (view.codes_kind) {
    case Codes::kDense:
      return launch(GemmF32Kernel<DenseCodec>);
    case Codes::kTable:
      return launch(GemmF32Kernel<TableCodec>);
    case Codes::kInt4:
      return launch(GemmF32Kernel<Int4Codec>);
    case Codes::kFP8:
      return launch(GemmF32Kernel<Fp8Codec>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
