// Launchers of the mma kernels, one file a format, and how they divide the work.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_MMA_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_MMA_H_

#include <cstdint>

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// How the mma kernel divides y [m, N] and K over the blocks.
struct MmaPlan {
  int columns = 0;  // rows of x a block takes at a time: 16, 32, 64 or 128
  int rows = 0;     // its outputs
  int64_t column_tiles = 0;
  int64_t tiles = 0;
  int64_t whole_tiles = 0;  // the others are shared by all blocks
  int blocks = 0;

  // table: of a table format.
  MmaPlan(int64_t m, int64_t n, int64_t k, bool table, int multiprocessors);
  int64_t ShareBytes() const {
    return whole_tiles < tiles ? int64_t{blocks} * 2 * rows * columns * 4 : 0;
  }
};

struct MmaLaunch {
  const void* x = nullptr;  // [m, units * 128], rows at multiples of 16 bytes
  int64_t x_stride = 0;
  int64_t m = 0;
  void* y = nullptr;
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
  float* shares = nullptr;  // ShareBytes of the plan
  int scales_per_unit = 1;  // core::ScalesPerUnit of the weight, not 0
  bool f16 = false;         // x is F16, else BF16
};

// y = x W^T + bias. For compute capability 8.0 and up.
cudaError_t LaunchMmaInt4(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                          cudaStream_t stream);
cudaError_t LaunchMmaTable(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                           cudaStream_t stream);
cudaError_t LaunchMmaFp8(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                         cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_MMA_H_
