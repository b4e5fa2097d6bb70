// Grid sizes. Work lies along x, which takes 2^31 - 1 blocks; y and z take 65,535.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GRID_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GRID_H_

#include <cstdint>

#include <cuda_runtime.h>

namespace nibble::cuda {

// Blocks of `per_block` items that cover `items`. Past the limit of x the launch fails with
// cudaErrorInvalidConfiguration, which the caller reports.
inline dim3 GridFor(int64_t items, int64_t per_block) {
  constexpr int64_t kMaxBlocks = 0x7FFFFFFF;
  const int64_t blocks = (items + per_block - 1) / per_block;
  return dim3(blocks > kMaxBlocks ? 0u : static_cast<unsigned>(blocks));
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GRID_H_
