// Arguments of the wgmma kernels. Host code includes this header too.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_ARGS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_ARGS_CUH_

#include <cuda.h>

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// What the copies of a stage take: boxes of one unit of K of a block's rows.
struct WgmmaMaps {
  CUtensorMap x;  // arranged (ArrangeActivationsKernel), [m, units * 128]
  CUtensorMap codes;
  CUtensorMap scales;
  CUtensorMap zero_points;
};

// Work is divided in items of one tile of outputs, one tile of rows of x and one range of K, in
// this order, the last fastest.
struct WgmmaArgs {
  const void* x = nullptr;  // [m, units * 128] as it came, where the kernel copies rows itself
  int64_t x_stride = 0;
  void* y = nullptr;  // [m, N]
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
  int32_t m = 0;
  int32_t row_tiles = 1;     // of outputs
  int32_t column_tiles = 1;  // of rows of x
  int32_t splits = 1;        // ranges of K
  int32_t stages = 2;
  // With more than one split: sums of [tile][split] in the order of the threads, and how many
  // splits of each tile are done, which begin and end as 0.
  float* partials = nullptr;
  uint32_t* done = nullptr;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_ARGS_CUH_
