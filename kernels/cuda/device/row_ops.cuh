// norm_quant and silu_mul_quant on rows that a block holds in registers: one block a row, one pass
// over memory. Every rounding is where nibble/ops.h has it.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_CUH_

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/quantize_rows.cuh"
#include "kernels/cuda/device/silu.cuh"

namespace nibble::cuda {

// How a block holds a row: a thread keeps kSlots groups of eight columns; kMinBlocks blocks of
// kMaxThreads share a multiprocessor, which bounds the registers of a thread.
template <int kSlotsOfThread, int kThreads, int kBlocks>
struct RowShape {
  static constexpr int kSlots = kSlotsOfThread;
  static constexpr int kMaxThreads = kThreads;
  static constexpr int kMinBlocks = kBlocks;
  static constexpr int kMaxColumns = kSlots * kMaxThreads * 8;
};
// The last takes every row that is held at all.
using LongestRowShape = RowShape<4, 1024, 1>;

inline constexpr int kMaxSums = LongestRowShape::kMaxColumns / 256 + 4;

template <bool kVector>
__device__ inline void LoadGamma(const RowOpArgs& args, int32_t col, float (&gamma)[8]) {
  switch (args.gamma_type) {
    case Element::kF32:
      return Widen(LoadEight<kVector>(static_cast<const float*>(args.gamma), col, args.d), gamma);
    case Element::kF16:
      return Widen(LoadEight<kVector>(static_cast<const __half*>(args.gamma), col, args.d), gamma);
    default:
      return Widen(LoadEight<kVector>(static_cast<const __nv_bfloat16*>(args.gamma), col, args.d),
                   gamma);
  }
}

__device__ inline float SumOfSquares(const float (&v)[8]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(v[i], v[i], sum);
  return sum;
}

// 1 / sqrt(sum / d + epsilon); `columns` divides by d.
__device__ inline float InverseRms(float sum, const Divider& columns, float epsilon) {
  const float mean = columns.Covers(sum) ? columns(sum) : __fdiv_rn(sum, columns.divisor());
  return __frsqrt_rn(__fadd_rn(mean, epsilon));
}

template <class T>
__device__ inline Eight<T> Normalize(const Eight<T>& h, const float (&gamma)[8], float rsqrt) {
  float v[8];
  Widen(h, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(v[i], rsqrt);
  Widen(Round<T>(v), v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(v[i], gamma[i]);
  return Round<T>(v);
}

// kSameGamma: gamma has x's type. The sum's order depends on d alone: see BlockSum.
template <class T, class Shape, bool kVector, bool kSameGamma>
__global__ void __launch_bounds__(Shape::kMaxThreads, Shape::kMinBlocks)
    NormQuantKernel(const __grid_constant__ RowOpArgs args) {
  WaitForDependencies();
  constexpr int kSlots = Shape::kSlots;
  // Two slots leave registers to read gamma before the reduction and hide its latency there.
  constexpr bool kEarlyGamma = kSameGamma && kSlots <= 2;
  __shared__ __align__(16) float sums[kMaxSums];
  __shared__ uint32_t maxima[kMaxWarps];
  const int64_t row = blockIdx.x;
  const int32_t step = static_cast<int32_t>(blockDim.x) * 8;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 8;
  const Divider columns(static_cast<float>(args.d));
  Eight<T> h[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    h[slot] = LoadEight<kVector>(static_cast<const T*>(args.x) + row * args.x_stride,
                                 first + slot * step, args.d);
  }
  // Every load before the first store: residual_out may be residual.
  if (args.residual != nullptr) {
    Eight<T> added[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      added[slot] =
          LoadEight<kVector>(static_cast<const T*>(args.residual) + row * args.residual_stride,
                             first + slot * step, args.d);
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      h[slot] = Add(h[slot], added[slot]);
      StoreEight<kVector>(static_cast<T*>(args.residual_out) + row * args.residual_out_stride,
                          first + slot * step, args.d, h[slot]);
    }
  }
  Eight<T> early[kEarlyGamma ? kSlots : 1];
  if constexpr (kEarlyGamma) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      early[slot] =
          LoadEight<kVector>(static_cast<const T*>(args.gamma), first + slot * step, args.d);
    }
  }
  float squares[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    float v[8];
    Widen(h[slot], v);
    squares[slot] = SumOfSquares(v);
  }
  const float rsqrt = InverseRms(BlockSum(squares, sums), columns, args.epsilon);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int32_t col = first + slot * step;
    if (col >= args.d) continue;
    float gamma[8];
    if constexpr (kEarlyGamma) {
      Widen(early[slot], gamma);
    } else if constexpr (kSameGamma) {
      Widen(LoadEight<kVector>(static_cast<const T*>(args.gamma), col, args.d), gamma);
    } else {
      LoadGamma<kVector>(args, col, gamma);
    }
    h[slot] = Normalize(h[slot], gamma, rsqrt);
    if constexpr (!kVector) ClearPastEnd(h[slot], col, args.d);
  }
  StoreQuantized<kVector>(args, row, first, step, h, maxima);
}

template <class T, class Shape, bool kVector>
__global__ void __launch_bounds__(Shape::kMaxThreads, Shape::kMinBlocks)
    SiluMulQuantKernel(const __grid_constant__ RowOpArgs args) {
  WaitForDependencies();
  constexpr int kSlots = Shape::kSlots;
  __shared__ uint32_t maxima[kMaxWarps];
  const int64_t row = blockIdx.x;
  const int32_t step = static_cast<int32_t>(blockDim.x) * 8;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 8;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  Eight<T> v[kSlots];
  Eight<T> up[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    v[slot] = LoadEight<kVector>(x, first + slot * step, args.d);
    up[slot] = LoadEight<kVector>(x + args.d, first + slot * step, args.d);
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) v[slot] = SiluMul(v[slot], up[slot]);
  StoreQuantized<kVector>(args, row, first, step, v, maxima);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_CUH_
