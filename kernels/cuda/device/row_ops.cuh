// norm_quant and silu_mul_quant: one block a row, one pass over memory where the row fits the
// registers. Every rounding is where nibble/ops.h has it.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_CUH_

#include "kernels/cuda/device/args.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace nibble::cuda {

// Elements col..col+7 of a row of `d`, 0 past its end.
template <class T>
__device__ inline void LoadEight(const T* row, int32_t col, int32_t d, bool vector, float (&v)[8]) {
  if (vector) {
    LoadVector(row + col, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = col + i < d ? ToFloat(row[col + i]) : 0.0f;
}

template <class T>
__device__ inline void StoreEight(T* row, int32_t col, int32_t d, bool vector,
                                  const float (&v)[8]) {
  if (vector) {
    StoreVector(row + col, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (col + i < d) row[col + i] = FromFloat<T>(v[i]);
  }
}

__device__ inline void LoadGamma(const RowOpArgs& args, int32_t col, float (&gamma)[8]) {
  switch (args.gamma_type) {
    case Element::kF32:
      return LoadEight(static_cast<const float*>(args.gamma), col, args.d, args.vector, gamma);
    case Element::kF16:
      return LoadEight(static_cast<const __half*>(args.gamma), col, args.d, args.vector, gamma);
    default:
      return LoadEight(static_cast<const __nv_bfloat16*>(args.gamma), col, args.d, args.vector,
                       gamma);
  }
}

// v / scale as eight codes of args.y_type.
__device__ inline void StoreCodes(const RowOpArgs& args, int64_t row, int32_t col,
                                  const float (&v)[8], float scale) {
  const Divider divide(scale);
  auto* to = static_cast<uint8_t*>(args.y) + row * args.y_stride + col;
  uint8_t codes[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float scaled = divide(v[i]);
    codes[i] = args.y_type == Element::kI8 ? FloatToI8(scaled) : FloatToE4M3(scaled);
  }
  if (args.vector) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(codes);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (col + i < args.d) to[i] = codes[i];
  }
}

// What a row op computes before it quantizes, eight columns at a time. `Prepare` runs once a row,
// `Load` may be called again for the same columns.
template <class T>
struct NormRow {
  // First pass: h = x + residual, stored; returns h.
  __device__ static void Load(const RowOpArgs& args, int64_t row, int32_t col, float (&h)[8]) {
    LoadEight(static_cast<const T*>(args.x) + row * args.x_stride, col, args.d, args.vector, h);
    if (args.residual == nullptr) return;
    float added[8];
    LoadEight(static_cast<const T*>(args.residual) + row * args.residual_stride, col, args.d,
              args.vector, added);
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] = RoundTo<T>(__fadd_rn(h[i], added[i]));
    StoreEight(static_cast<T*>(args.residual_out) + row * args.residual_out_stride, col, args.d,
               args.vector, h);
  }
  // Another pass: what Load returned.
  __device__ static void Reload(const RowOpArgs& args, int64_t row, int32_t col, float (&h)[8]) {
    if (args.residual == nullptr) return Load(args, row, col, h);
    LoadEight(static_cast<const T*>(args.residual_out) + row * args.residual_out_stride, col,
              args.d, args.vector, h);
  }
  __device__ static void Finish(const RowOpArgs& args, int64_t, int32_t col, float rsqrt,
                                float (&v)[8]) {
    float gamma[8];
    LoadGamma(args, col, gamma);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = RoundTo<T>(__fmul_rn(RoundTo<T>(__fmul_rn(v[i], rsqrt)), gamma[i]));
    }
  }
  static constexpr bool kNeedsRsqrt = true;
};

template <class T>
struct SiluMulRow {
  __device__ static void Load(const RowOpArgs& args, int64_t row, int32_t col, float (&gate)[8]) {
    LoadEight(static_cast<const T*>(args.x) + row * args.x_stride, col, args.d, args.vector, gate);
  }
  __device__ static void Reload(const RowOpArgs& args, int64_t row, int32_t col, float (&gate)[8]) {
    Load(args, row, col, gate);
  }
  __device__ static void Finish(const RowOpArgs& args, int64_t row, int32_t col, float,
                                float (&v)[8]) {
    float up[8];
    LoadEight(static_cast<const T*>(args.x) + row * args.x_stride + args.d, col, args.d,
              args.vector, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float silu = __fdiv_rn(v[i], __fadd_rn(1.0f, expf(-v[i])));
      v[i] = RoundTo<T>(__fmul_rn(RoundTo<T>(silu), up[i]));
    }
  }
  static constexpr bool kNeedsRsqrt = false;
};

// kHeld: groups of eight columns that a thread keeps in registers; 0: rows of any length, read
// again in each phase. A thread's columns, and with them every sum's order, depend on d alone.
template <class T, template <class> class Row, int kHeld>
__global__ void __launch_bounds__(kHeld == 1 ? 512 : 1024)
    RowOpKernel(const __grid_constant__ RowOpArgs args) {
  __shared__ float sum_scratch[kMaxWarps];
  __shared__ int max_scratch[kMaxWarps];
  const int64_t row = blockIdx.x;
  const int32_t step = static_cast<int32_t>(blockDim.x) * 8;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 8;
  // Whole half-warps work on the same number of groups: sixteen groups of eight share a scale.
  const int32_t padded = (args.d + kGroupColumns - 1) / kGroupColumns * kGroupColumns;
  constexpr int kSlots = kHeld > 0 ? kHeld : 1;
  float v[kSlots][8];

  float sum = 0.0f;
  const auto load = [&](int32_t col, float(&h)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] = 0.0f;
    if (col < args.d) Row<T>::Load(args, row, col, h);
    if (Row<T>::kNeedsRsqrt) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = __fadd_rn(sum, __fmul_rn(h[i], h[i]));
    }
  };
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot) load(first + slot * step, v[slot]);
  } else if (Row<T>::kNeedsRsqrt) {
    for (int32_t col = first; col < args.d; col += step) load(col, v[0]);
  }
  float rsqrt = 0.0f;
  if (Row<T>::kNeedsRsqrt) {
    const float mean = __fdiv_rn(BlockSum(sum, sum_scratch), static_cast<float>(args.d));
    rsqrt = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, args.epsilon)));
  }

  // Values of the columns from `col` on in v[slot]; returns their largest magnitude.
  const auto finish = [&](int slot, int32_t col) {
    if constexpr (kHeld == 0) {
      if (col < args.d) Row<T>::Reload(args, row, col, v[slot]);
    }
    if (col < args.d) Row<T>::Finish(args, row, col, rsqrt, v[slot]);
    int amax = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (col + i >= args.d) v[slot][i] = 0.0f;
      amax = max(amax, MagnitudeBits(v[slot][i]));
    }
    return amax;
  };
  const auto store = [&](int slot, int32_t col, int amax) {
    float scale = args.static_scale;
    if (args.quant == Quant::kPerGroup) {
#pragma unroll
      for (int offset = 8; offset > 0; offset /= 2) {
        amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, offset));
      }
    }
    if (args.quant == Quant::kPerGroup || args.quant == Quant::kPerToken) {
      scale = DynamicScale(amax, args.y_type);
    }
    if (col >= args.d) return;
    if (args.quant == Quant::kNone) {
      StoreEight(static_cast<T*>(args.y) + row * args.y_stride, col, args.d, args.vector, v[slot]);
      return;
    }
    StoreCodes(args, row, col, v[slot], scale);
    if (args.quant == Quant::kPerGroup && col % kGroupColumns == 0) {
      args.scales[row * args.scales_stride + col / kGroupColumns] = scale;
    }
    if (args.quant == Quant::kPerToken && col == 0) args.scales[row * args.scales_stride] = scale;
  };

  if constexpr (kHeld > 0) {
    int amax[kHeld];
    int largest = 0;
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot) {
      amax[slot] = finish(slot, first + slot * step);
      largest = max(largest, amax[slot]);
    }
    if (args.quant == Quant::kPerToken) largest = BlockMax(largest, max_scratch);
#pragma unroll
    for (int slot = 0; slot < kHeld; ++slot) {
      store(slot, first + slot * step, args.quant == Quant::kPerToken ? largest : amax[slot]);
    }
  } else {
    int largest = 0;
    if (args.quant == Quant::kPerToken) {
      for (int32_t col = first; col < args.d; col += step) largest = max(largest, finish(0, col));
      largest = BlockMax(largest, max_scratch);
    }
    // Warps stay whole for the shuffles of per-group scales.
    for (int32_t col = first; col - first % 256 < padded; col += step) {
      const int amax = finish(0, col);
      store(0, col, args.quant == Quant::kPerToken ? largest : amax);
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_CUH_
