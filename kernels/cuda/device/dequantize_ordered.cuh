// Decoded rows of an act-order weight, whose inputs are stored sorted by group.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_ORDERED_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_ORDERED_CUH_

#include "kernels/cuda/device/decode.cuh"

namespace nibble::cuda {

inline constexpr int kOrderedThreads = 256;

// A thread decodes 8 inputs of a row, each from where it is stored, and writes them side by side:
// `out` may be across PCIe. out [rows, K], rows out_stride apart.
template <class Format, class Out>
__global__ void __launch_bounds__(kOrderedThreads)
    DequantizeOrderedKernel(const __grid_constant__ WeightView w, int32_t row_begin, int32_t rows,
                            Out* out, int64_t out_stride) {
  const int32_t eights = (w.k + 7) / 8;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kOrderedThreads + threadIdx.x;
  const int64_t row = index / eights;
  const int32_t k = static_cast<int32_t>(index % eights) * 8;
  if (row >= rows) return;
  const auto n = static_cast<int32_t>(row_begin + row);
  float v[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (k + i >= w.k) break;
    const int32_t place = w.column_place[k + i];
    const int64_t scale_index = ScaleIndex(w, n, place);
    const float zero = w.zero_points != nullptr ? w.zero_points[scale_index] : 8.0f;
    const float code = Format::Code(Format::Load(w, n, place / 8 * 8), nullptr, place % 8, zero);
    v[i] = __fmul_rn(code, LoadElement(w.scales, w.scale_type, scale_index));
  }
  Out* to = out + row * out_stride + k;
  if (k + 8 <= w.k && out_stride % 8 == 0 &&
      reinterpret_cast<uintptr_t>(out) % (8 * sizeof(Out)) == 0) {
    StoreVector(to, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (k + i < w.k) to[i] = FromFloat<Out>(v[i]);
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_DEQUANTIZE_ORDERED_CUH_
