// Decoded rows of an act-order weight, whose inputs are stored sorted by group.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_ORDERED_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_ORDERED_CUH_

#include "kernels/cuda/device/decode.cuh"

namespace nibble::cuda {

inline constexpr int kOrderedThreads = 256;

// A thread decodes 8 stored inputs of a row and puts each where it belongs. The scattered writes of
// a row meet in the L2: rows are far smaller than it is.
template <class Codec, class Out>
__global__ void __launch_bounds__(kOrderedThreads)
    DequantizeOrderedKernel(const __grid_constant__ WeightView w, int32_t row_begin, int32_t rows,
                            Out* out, int64_t out_stride) {
  __shared__ float table[16];
  FillTable<Codec>(w, table);
  __syncthreads();
  const int32_t eights = (w.k + 7) / 8;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kOrderedThreads + threadIdx.x;
  const int64_t row = index / eights;
  const int32_t k = static_cast<int32_t>(index % eights) * 8;
  if (row >= rows) return;
  float v[8];
  Codec::Decode(w, table, static_cast<int32_t>(row_begin + row), k, v);
  Out* to = out + row * out_stride;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (k + i < w.k) to[w.column_order[k + i]] = FromFloat<Out>(v[i]);
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_ORDERED_CUH_
