// y = x W^T + bias of E4M3 codes on the tensor cores of compute capability 9.0a.
//
// A block takes 128 outputs and kRows rows of x, and the whole K, 128 inputs a step. One warp
// copies tiles of the weight and of x into a ring of stages; two warpgroups multiply, 64 outputs
// each. The weight is the 64-row operand, so that few rows of x waste nothing.
//
// The tensor cores keep few bits of a sum while they add, so that each step's sums start at 0 and
// are added to binary32 sums, in order, by the multiplying warps. There scales of blocks are
// applied (kBlock), or nothing is, and the scales of rows and outputs multiply the finished sums. A
// row's sums never meet another row's.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_FP8_GEMM_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_FP8_GEMM_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/wgmma_fp8.cuh"

namespace nibble::cuda {

inline constexpr int kFp8GemmOutputs = 128;
inline constexpr int kFp8GemmInputs = 128;
inline constexpr int kFp8GemmWarps = 8;  // that multiply
inline constexpr int kFp8GemmMaxStages = 12;
inline constexpr int kFp8GemmSharedBytes = 227 * 1024 - 1024;

struct Fp8GemmArgs {
  int64_t m = 0;
  int32_t n = 0;
  int32_t steps = 0;                // ceil(K / 128)
  const float* x_scales = nullptr;  // of row m and step i: [i * x_step_stride + m * x_row_stride]
  int64_t x_row_stride = 0;         // kBlock: 1, and readable up to a multiple of kRows
  int64_t x_step_stride = 0;        // kBlock: a multiple of 4
  const float* w_scales = nullptr;  // of output n and step i, below
  int32_t rows_per_scale = 1;
  int32_t groups = 1;       // scales of an output
  int32_t group_steps = 1;  // steps that share one
  const float* bias = nullptr;
  void* y = nullptr;
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
  // With more than one split each takes `split_steps` of K, and its sums [m, n] go to partials
  // [split][m][n] as they are (kBlock: scaled).
  int32_t splits = 1;
  int32_t split_steps = 0;
  float* partials = nullptr;
};

template <int kRows_, bool kBlock_>
struct Fp8GemmShape {
  static constexpr int kRows = kRows_;
  static constexpr bool kBlock = kBlock_;
  static constexpr int kWeightBytes = kFp8GemmOutputs * kFp8GemmInputs;
  static constexpr int kXBytes = kRows * kFp8GemmInputs;
  static constexpr int kStageBytes = kWeightBytes + kXBytes;
  static constexpr int kScaleBytes = kBlock ? kRows * 4 : 0;  // of x, a stage
  static constexpr int kFitting = kFp8GemmSharedBytes / (kStageBytes + kScaleBytes);
  static constexpr int kStages = kFitting < kFp8GemmMaxStages ? kFitting : kFp8GemmMaxStages;
  static constexpr int kThreads = (kFp8GemmWarps + 1) * 32;
  static constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + kScaleBytes);
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    Fp8GemmKernel(const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ Fp8GemmArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kRows = Shape::kRows;
  constexpr int kStages = Shape::kStages;
  extern __shared__ uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  // Swizzled tiles lie at multiples of 1024 bytes.
  const uint32_t ring = Kept((SharedAddress(dynamic) + 1023) & ~1023u);
  const uint32_t scales_at = ring + kStages * Shape::kStageBytes;
  const uint32_t full = Kept(SharedAddress(barriers));
  const uint32_t empty = full + kStages * 8;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const auto m_tiles = static_cast<int32_t>((args.m + kRows - 1) / kRows);
  const int32_t n_tiles = (args.n + kFp8GemmOutputs - 1) / kFp8GemmOutputs;
  const int64_t tiles_of_split = int64_t{m_tiles} * n_tiles;
  const int64_t tiles = tiles_of_split * args.splits;
  LaunchDependents();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitStage(full, empty, stage, kFp8GemmWarps);
    }
    FenceBarrierInit();
  }
  __syncthreads();

  if (warp == kFp8GemmWarps) {
    if (lane != 0) return;
    const uint64_t once = EvictFirstPolicy();
    // Where the next stage comes from: divisions once a tile.
    int64_t tile = 0;
    int32_t m = 0;
    int32_t n = 0;
    int step = 0;
    int end = 0;
    const auto start = [&](int64_t at) {
      tile = at;
      const auto split = static_cast<int32_t>(tile / tiles_of_split);
      const auto of_split = static_cast<int32_t>(tile - split * tiles_of_split);
      n = of_split / m_tiles * kFp8GemmOutputs;
      m = of_split % m_tiles * kRows;
      step = split * args.split_steps;
      end = min(step + args.split_steps, args.steps);
    };
    const auto next = [&] {
      if (++step == end) start(tile + gridDim.x);
    };
    const auto copy_w = [&](int stage) {
      const uint32_t barrier = full + stage * 8;
      ArriveExpecting(barrier, Shape::kStageBytes + Shape::kScaleBytes);
      const uint32_t to = ring + stage * Shape::kStageBytes;
      if (m_tiles == 1) {
        TensorCopyOnce(to, w_map, step * kFp8GemmInputs, n, barrier, once);
      } else {
        TensorCopy(to, w_map, step * kFp8GemmInputs, n, barrier);
      }
    };
    const auto copy_x = [&](int stage) {
      const uint32_t barrier = full + stage * 8;
      TensorCopy(ring + stage * Shape::kStageBytes + Shape::kWeightBytes, x_map,
                 step * kFp8GemmInputs, m, barrier);
      if constexpr (Shape::kBlock) {
        BulkCopy(scales_at + stage * Shape::kScaleBytes,
                 args.x_scales + step * args.x_step_stride + m, Shape::kScaleBytes, barrier);
      }
    };
    // Weights do not wait for the kernels in front of this one.
    int ahead = 0;
    for (start(blockIdx.x); ahead < kStages && tile < tiles; ++ahead, next()) copy_w(ahead);
    WaitForDependencies();
    start(blockIdx.x);
    for (int stage = 0; stage < ahead; ++stage, next()) copy_x(stage);
    uint32_t parity = 0;
    int stage = 0;
    for (; tile < tiles; next()) {
      WaitBarrier(empty + stage * 8, parity);
      copy_w(stage);
      copy_x(stage);
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    return;
  }

  WaitForDependencies();
  const int group = warp / 4;
  const int row_in_tile = warp * 16 + lane / 4;
  const int column = lane % 4 * 2;
  int stage = 0;
  uint32_t parity = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t m_begin = tile % m_tiles * kRows;
    const int32_t n =
        static_cast<int32_t>(tile % tiles_of_split / m_tiles) * kFp8GemmOutputs + row_in_tile;
    const auto split = static_cast<int32_t>(tile / tiles_of_split);
    const int32_t end = min((split + 1) * args.split_steps, args.steps);
    const float* w_scales[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      w_scales[i] =
          args.w_scales +
          static_cast<int64_t>(min(n + 8 * i, args.n - 1) / args.rows_per_scale) * args.groups;
    }
    float sums[kRows / 2];
    float part[kRows / 2];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] = part[i] = 0.0f;
    for (int step = split * args.split_steps; step < end; ++step) {
      float scale[2];
      if constexpr (Shape::kBlock) {
        const int32_t of = args.groups == 1 ? 0 : step / args.group_steps;
        scale[0] = __ldg(w_scales[0] + of);
        scale[1] = __ldg(w_scales[1] + of);
      }
      WaitBarrier(full + stage * 8, parity);
      const uint32_t at = ring + stage * Shape::kStageBytes;
      const uint64_t a = SwizzledOperand(at + group * 64 * kFp8GemmInputs);
      const uint64_t b = SwizzledOperand(at + Shape::kWeightBytes);
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 4; ++i) Fp8Wgmma<kRows>::Run(part, a + 2 * i, b + 2 * i, i > 0);
      WgmmaCommit();
      WgmmaWait<0>();
      if constexpr (Shape::kBlock) {
        const uint32_t x_scales = scales_at + stage * Shape::kScaleBytes + column * 4;
#pragma unroll
        for (int j = 0; j < kRows / 8; ++j) {
          const float2 x = LoadShared2Floats(x_scales + j * 32);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float both = __fmul_rn(i % 2 == 0 ? x.x : x.y, scale[i / 2]);
            sums[4 * j + i] = __fmaf_rn(part[4 * j + i], both, sums[4 * j + i]);
          }
        }
      }
      ArriveByWarp(empty + stage * 8);
      if constexpr (!Shape::kBlock) {
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) sums[i] = __fadd_rn(sums[i], part[i]);
      }
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t output = n + 8 * i;
      if (output >= args.n) continue;
      const float w_scale = Shape::kBlock ? 1.0f : __ldg(w_scales[i]);
      const float bias = args.bias == nullptr ? 0.0f : __ldg(args.bias + output);
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int64_t m = m_begin + 8 * j + column + odd;
          if (m >= args.m) continue;
          float sum = sums[4 * j + 2 * i + odd];
          if (args.splits > 1) {
            args.partials[(split * args.m + m) * args.n + output] = sum;
            continue;
          }
          if constexpr (!Shape::kBlock) {
            sum = __fmul_rn(__fmul_rn(sum, w_scale), __ldg(args.x_scales + m * args.x_row_stride));
          }
          StoreElement(args.y, args.y_type, m * args.y_stride + output, __fadd_rn(sum, bias));
        }
      }
    }
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_FP8_GEMM_CUH_
