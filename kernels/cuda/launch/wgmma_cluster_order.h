// Which of the loops of WgmmaClusterTurnsKernel pairs of blocks run.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_ORDER_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_ORDER_H_

#include "kernels/cuda/device/wgmma_args.cuh"

namespace nibble::cuda {

// How pairs of so many rows of x, 16, 32 or 64, and outputs, 64, 128 or 256, meet x: what took
// least on an H200, with zero points or without (kernels/README.md). Putting it in order is the
// same work for any number of outputs, and grows with the rows. in_a_row: a multiplication must
// take 16 inputs in a row, as the GEMV does that adds the same chains.
constexpr ClusterX PairsX(int columns, int outputs, bool in_a_row) {
  constexpr ClusterX kAsItLies = ClusterX::kAsItLies;
  constexpr ClusterX kWords = ClusterX::kWords;
  constexpr ClusterX kHalfWords = ClusterX::kHalfWords;
  constexpr ClusterX kOf64[] = {kWords, kAsItLies, kAsItLies};  // 16, 32, 64 rows
  constexpr ClusterX kOf128[] = {kWords, kHalfWords, kAsItLies};
  constexpr ClusterX kOf256[] = {kWords, kWords, kHalfWords};
  const int row = columns == 16 ? 0 : columns == 32 ? 1 : 2;
  const ClusterX x = outputs == 64 ? kOf64[row] : outputs == 128 ? kOf128[row] : kOf256[row];
  return in_a_row && x == kWords ? kHalfWords : x;
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_CLUSTER_ORDER_H_
