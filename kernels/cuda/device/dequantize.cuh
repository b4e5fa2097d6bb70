// out[rows, K] = decoded rows, rounded once to Out.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_CUH_

#include "kernels/cuda/device/decode.cuh"

namespace nibble::cuda {

inline constexpr int kDequantizeWarps = 8;

// A warp decodes one unit: 16 rows x 128 inputs, from the 16-row tile that holds `row_begin` on.
// out [rows, out_cols] with rows out_stride apart; columns past K, up to out_cols, become 0.
template <class Codec, class Out>
__global__ void __launch_bounds__(kDequantizeWarps * 32)
    DequantizeKernel(const __grid_constant__ WeightView w, int32_t row_begin, int32_t rows,
                     Out* out, int64_t out_stride, int32_t out_cols) {
  __shared__ float table[16];
  FillTable<Codec>(w, table);
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kDequantizeWarps + threadIdx.x / 32;
  const int32_t units = (out_cols + kUnitInputs - 1) / kUnitInputs;
  const int32_t tile = row_begin / kUnitRows + static_cast<int32_t>(unit / units);
  const int32_t unit_k = static_cast<int32_t>(unit % units) * kUnitInputs;
  const bool aligned =
      out_stride % 8 == 0 && reinterpret_cast<uintptr_t>(out) % (8 * sizeof(Out)) == 0;
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const int32_t n = tile * kUnitRows + lane / 4 + 8 * (step & 1);
    const int32_t k = unit_k + (step >> 1) * 32 + (lane % 4) * 8;
    if (n < row_begin || n >= row_begin + rows || k >= out_cols) continue;
    float v[8] = {};
    if (k < w.k) Codec::Decode(w, table, n, k, v);
    Out* to = out + (n - row_begin) * out_stride + k;
    if (aligned && k + 8 <= out_cols) {
      StoreVector(to, v);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (k + i < out_cols) to[i] = FromFloat<Out>(v[i]);
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_CUH_
