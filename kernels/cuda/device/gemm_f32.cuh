// y = x W^T + bias with exactly decoded weights, binary32 products and sums: right for every
// format, shape and alignment. One output is one sum over k in ascending order, so a row's bits
// depend on neither M nor its neighbours.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_F32_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_F32_CUH_

#include "kernels/cuda/device/decode.cuh"

namespace nibble::cuda {

inline constexpr int kF32TileM = 64;
inline constexpr int kF32TileN = 64;
inline constexpr int kF32TileK = 32;
inline constexpr int kF32Threads = 256;

// x [m, K] binary32, rows x_stride apart. y [m, N] of y_type, rows y_stride apart. One block a
// tile, tiles of one column of x side by side.
template <class Codec>
__global__ void __launch_bounds__(kF32Threads)
    GemmF32Kernel(const __grid_constant__ WeightView w, const float* x, int64_t x_stride, int64_t m,
                  void* y, Element y_type, int64_t y_stride) {
  // Rows padded by one bank group: the threads of a warp store columns of them.
  __shared__ float x_tile[kF32TileK][kF32TileM + 4];
  __shared__ float w_tile[kF32TileK][kF32TileN + 4];
  __shared__ float table[16];
  FillTable<Codec>(w, table);
  __syncthreads();

  const int64_t tiles_m = (m + kF32TileM - 1) / kF32TileM;
  const int64_t m_begin = blockIdx.x % tiles_m * kF32TileM;
  const int32_t n_begin = static_cast<int32_t>(blockIdx.x / tiles_m) * kF32TileN;
  const int load_row = threadIdx.x / 4;
  const int load_k = threadIdx.x % 4 * 8;
  const int thread_m = threadIdx.x / 16 * 4;
  const int thread_n = threadIdx.x % 16 * 4;

  float sums[4][4] = {};
  for (int32_t k_begin = 0; k_begin < w.k; k_begin += kF32TileK) {
    const int32_t k = k_begin + load_k;
    float weights[8] = {};
    if (n_begin + load_row < w.n && k < w.k) {
      Codec::Decode(w, table, n_begin + load_row, k, weights);
    }
    const float* x_row = x + (m_begin + load_row) * x_stride;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      w_tile[load_k + i][load_row] = weights[i];
      x_tile[load_k + i][load_row] = m_begin + load_row < m && k + i < w.k ? x_row[k + i] : 0.0f;
    }
    __syncthreads();
    // Past the end of the row both sides are 0 and could only turn an infinite sum into NaN.
    const int steps = min(kF32TileK, w.k - k_begin);
    for (int step = 0; step < steps; ++step) {
      const float4 a = *reinterpret_cast<const float4*>(&x_tile[step][thread_m]);
      const float4 b = *reinterpret_cast<const float4*>(&w_tile[step][thread_n]);
      const float left[4] = {a.x, a.y, a.z, a.w};
      const float right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = __fmaf_rn(left[i], right[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t row = m_begin + thread_m + i;
      const int32_t n = n_begin + thread_n + j;
      if (row >= m || n >= w.n) continue;
      const float bias = w.bias == nullptr ? 0.0f : w.bias[n];
      StoreElement(y, y_type, row * y_stride + n, sums[i][j] + bias);
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_F32_CUH_
