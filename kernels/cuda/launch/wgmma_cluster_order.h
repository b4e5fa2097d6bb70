// Which of the loops of WgmmaClusterTurnsKernel pairs of blocks run.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_ORDER_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_ORDER_H_

namespace nibble::cuda {

// Whether pairs of so many rows of x, 16, 32 or 64, and outputs, 64, 128 or 256, put x in order by
// default; else it is met as it lies. Putting it in order is the same work for any number of
// outputs, and grows with the rows.
constexpr bool PairsOrderX(int columns, int outputs) {
  constexpr bool kOf64[] = {1, 0, 0};  // 16, 32, 64 rows
  constexpr bool kOf128[] = {1, 1, 0};
  constexpr bool kOf256[] = {1, 1, 1};
  const int row = columns == 16 ? 0 : columns == 32 ? 1 : 2;
  return outputs == 64 ? kOf64[row] : outputs == 128 ? kOf128[row] : kOf256[row];
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_ORDER_H_
