// Activations of the FP8 matmul: codes in rows of whole 16 bytes, and scales by steps of K.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_FP8_ACTIVATIONS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_FP8_ACTIVATIONS_CUH_

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/fp8_args.cuh"
#include "kernels/cuda/device/quantize_rows.cuh"

namespace nibble::cuda {

inline constexpr int kFp8RowThreads = 256;

__device__ inline void StoreEightCodes(uint8_t* to, uint2 codes) {
  *reinterpret_cast<uint2*>(to) = codes;
}
// Every code is a BF16 number.
__device__ inline void StoreEightCodes(__nv_bfloat16* to, uint2 codes) {
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = E4M3ToFloat(((i < 4 ? codes.x : codes.y) >> (8 * (i % 4))) & 0xFFu);
  }
  StoreVector(to, v);
}

// x quantized per token, per group or with a static scale. One block a row. kVector: k is a
// multiple of 8 and rows of x are aligned to 16 bytes.
template <class T, class Code, bool kVector>
__global__ void __launch_bounds__(kFp8RowThreads)
    QuantizeActivationsKernel(const __grid_constant__ ActivationArgs args, Fp8Rows to) {
  LaunchDependents();
  WaitForDependencies();
  __shared__ uint32_t scratch[kMaxWarps];
  constexpr int32_t kStep = kFp8RowThreads * 8;
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 8;
  float scale = args.static_scale;
  float amax = 0.0f;
  if (args.quant == Quant::kPerToken) {
    uint32_t largest = 0;
    for (int32_t col = first; col < args.k; col += kStep) {
      largest = max(largest, LargestMagnitude(LoadEight<kVector>(x, col, args.k)));
    }
    amax = MagnitudeToFloat<T>(BlockMax(largest, scratch));
    scale = DynamicScale(amax, false);
  }
  const bool grouped = args.quant == Quant::kPerGroup;
  const bool fixed = args.quant == Quant::kStatic;
  if (!grouped) {
    for (int32_t step = threadIdx.x; step < to.places.steps; step += kFp8RowThreads) {
      to.scales[to.places.Of(row, step)] = scale;
    }
  }
  // Whole warps, which find the largest of a group together.
  for (int32_t begin = 0; begin < to.stride; begin += kStep) {
    const int32_t col = begin + first;
    const Eight<T> v = LoadEight<kVector>(x, col, args.k);
    if (grouped || fixed) {
      const uint32_t largest = LargestMagnitude(v);
      amax = MagnitudeToFloat<T>(grouped ? GroupMax(largest) : largest);
      if (grouped) scale = DynamicScale(amax, false);
    }
    if (col >= to.stride) continue;
    if (grouped && col % kGroupColumns == 0) {
      if (col < args.k) to.scales[to.places.Of(row, col / kGroupColumns)] = scale;
    }
    const uint2 codes = QuantizeEight(v, Divider(scale), amax, false);
    StoreEightCodes(static_cast<Code*>(to.codes) + row * to.stride + col, codes);
  }
}

// The same to codes, where k is a multiple of 16 up to kSlots * 2048 and rows of x are aligned to
// 16 bytes: the row stays in registers, and memory is read once (H200, matmul of 4096x14336 at 4096
// rows: 424 us against 437; at 1024 rows 98.4 against 99.3).
template <class T, int kSlots>
__global__ void __launch_bounds__(kFp8RowThreads)
    QuantizeHeldKernel(const __grid_constant__ ActivationArgs args, Fp8Rows to) {
  LaunchDependents();
  WaitForDependencies();
  __shared__ uint32_t scratch[kMaxWarps];
  constexpr int32_t kStep = kFp8RowThreads * 8;
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 8;
  Eight<T> v[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    v[slot] = LoadEight<true>(x, first + slot * kStep, args.k);
  }
  const bool grouped = args.quant == Quant::kPerGroup;
  float scale = args.static_scale;
  float amax = 0.0f;
  if (args.quant == Quant::kPerToken) {
    uint32_t largest = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) largest = max(largest, LargestMagnitude(v[slot]));
    amax = MagnitudeToFloat<T>(BlockMax(largest, scratch));
    scale = DynamicScale(amax, false);
  }
  if (!grouped) {
    for (int32_t step = threadIdx.x; step < to.places.steps; step += kFp8RowThreads) {
      to.scales[to.places.Of(row, step)] = scale;
    }
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int32_t col = first + slot * kStep;
    if (args.quant != Quant::kPerToken) {
      const uint32_t largest = LargestMagnitude(v[slot]);
      amax = MagnitudeToFloat<T>(grouped ? GroupMax(largest) : largest);
      if (grouped) scale = DynamicScale(amax, false);
    }
    if (col >= args.k) continue;
    if (grouped && col % kGroupColumns == 0) {
      to.scales[to.places.Of(row, col / kGroupColumns)] = scale;
    }
    StoreEightCodes(static_cast<uint8_t*>(to.codes) + row * to.stride + col,
                    QuantizeEight(v[slot], Divider(scale), amax, false));
  }
}

// Codes that are there already. Eight a thread.
template <class Code>
__global__ void __launch_bounds__(kFp8RowThreads)
    CopyCodesKernel(const __grid_constant__ ActivationArgs args, Fp8Rows to) {
  LaunchDependents();
  WaitForDependencies();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kFp8RowThreads + threadIdx.x;
  const int32_t pieces = to.stride / 8;
  if (index >= args.m * pieces) return;
  const int64_t row = index / pieces;
  const auto col = static_cast<int32_t>(index % pieces) * 8;
  const uint8_t* x = static_cast<const uint8_t*>(args.x) + row * args.x_stride + col;
  uint2 codes = {};
  if (reinterpret_cast<uintptr_t>(x) % 8 == 0 && col + 8 <= args.k) {
    codes = *reinterpret_cast<const uint2*>(x);
  } else {
    for (int i = 0; i < 8; ++i) {
      const uint32_t code = col + i < args.k ? x[i] : 0u;
      (i < 4 ? codes.x : codes.y) |= code << (8 * (i % 4));
    }
  }
  StoreEightCodes(static_cast<Code*>(to.codes) + row * to.stride + col, codes);
}

// Scales that are there already: one a row, which each step repeats, or one a step.
__global__ void __launch_bounds__(kFp8RowThreads)
    CopyScalesKernel(const __grid_constant__ ActivationArgs args, Fp8Rows to) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kFp8RowThreads + threadIdx.x;
  if (index >= args.m * to.places.steps) return;
  const int64_t row = index % args.m;
  const auto step = static_cast<int32_t>(index / args.m);
  const int32_t from = args.quant == Quant::kPerGroup ? step : 0;
  to.scales[to.places.Of(row, step)] = args.x_scales[row * args.x_scales_stride + from];
}

template <class T>
__device__ inline void StoreFour(void* data, int64_t index, const float (&v)[4]) {
  alignas(16) T packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] = FromFloat<T>(v[i]);
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint2*>(static_cast<T*>(data) + index) = reinterpret_cast<uint2&>(packed);
  } else {
    *reinterpret_cast<uint4*>(static_cast<T*>(data) + index) = reinterpret_cast<uint4&>(packed);
  }
}

inline constexpr int kFinishRows = 4;

// Four outputs of kFinishRows rows a thread. kVector: n is a multiple of 4, rows of sums and y are
// aligned to four.
template <bool kVector>
__global__ void __launch_bounds__(kFp8RowThreads)
    FinishKernel(const __grid_constant__ FinishArgs args) {
  const int32_t pieces = (args.n + 3) / 4;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kFp8RowThreads + threadIdx.x;
  const int64_t first = index / pieces * kFinishRows;
  const auto n = static_cast<int32_t>(index % pieces) * 4;
  float w_scales[4];
  float bias[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t output = min(n + i, args.n - 1);
    const int32_t scale = args.rows_per_scale == 1 ? output : output / args.rows_per_scale;
    w_scales[i] = args.w_scales == nullptr ? 1.0f : __ldg(args.w_scales + scale * args.w_stride);
    bias[i] = args.bias == nullptr ? 0.0f : __ldg(args.bias + output);
  }
  WaitForDependencies();
  if (first >= args.m) return;
  float v[kFinishRows][4] = {};
  for (int split = 0; split < args.splits; ++split) {
#pragma unroll
    for (int row = 0; row < kFinishRows; ++row) {
      if (first + row >= args.m) continue;
      const float* from = args.sums + split * args.split_stride + (first + row) * args.n + n;
      alignas(16) float four[4] = {};
      if constexpr (kVector) {
        *reinterpret_cast<float4*>(four) = *reinterpret_cast<const float4*>(from);
      } else {
        for (int i = 0; i < 4; ++i) {
          if (n + i < args.n) four[i] = from[i];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) v[row][i] = __fadd_rn(v[row][i], four[i]);
    }
  }
#pragma unroll
  for (int row = 0; row < kFinishRows; ++row) {
    if (first + row >= args.m) return;
    const float x_scale =
        args.x_scales == nullptr ? 1.0f : args.x_scales[(first + row) * args.x_stride];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[row][i] = __fadd_rn(__fmul_rn(__fmul_rn(v[row][i], w_scales[i]), x_scale), bias[i]);
    }
    const int64_t at = (first + row) * args.y_stride + n;
    if constexpr (kVector) {
      if (args.y_type == Element::kBF16) {
        StoreFour<__nv_bfloat16>(args.y, at, v[row]);
      } else if (args.y_type == Element::kF16) {
        StoreFour<__half>(args.y, at, v[row]);
      } else {
        StoreFour<float>(args.y, at, v[row]);
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        if (n + i < args.n) StoreElement(args.y, args.y_type, at + i, v[row][i]);
      }
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_FP8_ACTIVATIONS_CUH_
