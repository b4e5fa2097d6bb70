// Arguments of the wgmma kernels. Host code includes this header too.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_ARGS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_ARGS_CUH_

#include <cuda.h>

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// Units of K of a turn of gemm_wgmma_turns.cuh, and of each warpgroup in a turn of
// gemm_wgmma_cluster_turns.cuh, each a stage of the ring.
inline constexpr int kTurnUnits = 4;

// How x meets the codes in gemm_wgmma_cluster_turns.cuh: as it lies; put in the order of words of
// codes (StageArrangement); or in that of half words (HalfWordSwaps), in which a multiplication
// keeps its 16 inputs in a row.
enum class ClusterX { kAsItLies, kWords, kHalfWords };

// What the copies of a stage take: boxes of one unit of K of a block's rows.
struct WgmmaMaps {
  CUtensorMap x;  // [m, units * 128], as WgmmaLaunch has it
  CUtensorMap codes;
  CUtensorMap scales;
  CUtensorMap zero_points;
};

// y is divided in tiles, those of the same outputs and other rows of x beside each other. A block
// takes every `blocks`-th of the first whole_tiles; all blocks share the others equally.
struct WgmmaArgs {
  void* y = nullptr;  // [m, N]
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
  bool vector_y = false;              // 16-bit, its rows and their length multiples of 16 bytes
  float unscale = 1.0f;               // what sums are multiplied by at last
  const float* row_scales = nullptr;  // and then: of each output, or one in all; null: nothing
  int32_t row_scales_stride = 0;      // 1, or 0
  int32_t m = 0;
  int32_t column_tiles = 1;  // of rows of x
  int32_t tiles = 1;
  int32_t whole_tiles = 0;
  int32_t halved_tiles = 0;  // of the wide kernel (WideWork)
  int32_t blocks = 1;        // gridDim.x
  int32_t stages = 2;
  float* shares = nullptr;  // of the shared tiles: two of every block, in the order of its threads
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_ARGS_CUH_
