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
  T packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] = FromFloat<T>(v[i]);
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint2*>(static_cast<T*>(data) + index) = reinterpret_cast<uint2&>(packed);
  } else {
    *reinterpret_cast<uint4*>(static_cast<T*>(data) + index) = reinterpret_cast<uint4&>(packed);
  }
}

// Four outputs a thread. kVector: n is a multiple of 4, rows of sums and y are aligned to four.
template <bool kVector>
__global__ void __launch_bounds__(kFp8RowThreads)
    FinishKernel(const __grid_constant__ FinishArgs args) {
  WaitForDependencies();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kFp8RowThreads + threadIdx.x;
  const int32_t pieces = (args.n + 3) / 4;
  if (index >= args.m * pieces) return;
  const int64_t row = index / pieces;
  const auto n = static_cast<int32_t>(index % pieces) * 4;
  float v[4] = {};
  for (int split = 0; split < args.splits; ++split) {
    const float* from = args.sums + split * args.split_stride + row * args.n + n;
    if constexpr (kVector) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      v[0] = __fadd_rn(v[0], four.x);
      v[1] = __fadd_rn(v[1], four.y);
      v[2] = __fadd_rn(v[2], four.z);
      v[3] = __fadd_rn(v[3], four.w);
    } else {
      for (int i = 0; i < 4; ++i) {
        if (n + i < args.n) v[i] = __fadd_rn(v[i], from[i]);
      }
    }
  }
  const float x_scale = args.x_scales == nullptr ? 1.0f : args.x_scales[row * args.x_stride];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t output = min(n + i, args.n - 1);
    if (args.w_scales != nullptr) {
      v[i] = __fmul_rn(v[i], args.w_scales[output / args.rows_per_scale * args.w_stride]);
    }
    v[i] = __fmul_rn(v[i], x_scale);
    if (args.bias != nullptr) v[i] = __fadd_rn(v[i], args.bias[output]);
  }
  const int64_t at = row * args.y_stride + n;
  if constexpr (kVector) {
    if (args.y_type == Element::kBF16) {
      StoreFour<__nv_bfloat16>(args.y, at, v);
    } else if (args.y_type == Element::kF16) {
      StoreFour<__half>(args.y, at, v);
    } else {
      StoreFour<float>(args.y, at, v);
    }
  } else {
    for (int i = 0; i < 4; ++i) {
      if (n + i < args.n) StoreElement(args.y, args.y_type, at + i, v[i]);
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_FP8_ACTIVATIONS_CUH_
