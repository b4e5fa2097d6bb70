// Arguments of the kernels around an FP8 matmul. Host code includes this header too.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_FP8_ARGS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_FP8_ARGS_CUH_

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// Where scales lie: rows in chunks of chunk_rows, and of each chunk [step][row]. Only the last
// chunk may have fewer rows.
struct Fp8ScalePlaces {
  int64_t rows = 0;
  int64_t chunk_rows = 0;
  int32_t steps = 1;
  __host__ __device__ int64_t Of(int64_t row, int32_t step) const {
    const int64_t first = row / chunk_rows * chunk_rows;
    const int64_t of_chunk = rows - first < chunk_rows ? rows - first : chunk_rows;
    return first * steps + step * of_chunk + row - first;
  }
};

// Where activations go. Elements of a row past column k become 0.
struct Fp8Rows {
  void* codes = nullptr;
  int32_t stride = 0;  // a multiple of 16
  float* scales = nullptr;
  Fp8ScalePlaces places;
};

// y [m, n] = round(sum over splits * x scale * w scale + bias), sums [splits][m][n]; scales may be
// null. Output n's scale is w_scales[n / rows_per_scale * w_stride].
struct FinishArgs {
  const float* sums = nullptr;
  int64_t split_stride = 0;
  int32_t splits = 1;
  int64_t m = 0;
  int32_t n = 0;
  const float* x_scales = nullptr;
  int64_t x_stride = 0;
  const float* w_scales = nullptr;
  int32_t rows_per_scale = 1;
  int32_t w_stride = 1;
  const float* bias = nullptr;
  void* y = nullptr;
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_FP8_ARGS_CUH_
