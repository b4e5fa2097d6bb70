// Reductions of a block in a fixed order, and the quantizer that the row kernels share.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_REDUCE_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_REDUCE_CUH_

#include "kernels/cuda/device/element.cuh"

namespace nibble::cuda {

inline constexpr int kMaxWarps = 32;

inline constexpr int kGroupColumns = 128;

// Sum over the block, the same bits in every thread. blockDim.x is a multiple of 32.
__device__ inline float BlockSum(float value, float* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum = __fadd_rn(sum, scratch[warp]);
  __syncthreads();
  return sum;
}

// Magnitudes are compared as integers, where a NaN is above every number.
__device__ inline int MagnitudeBits(float value) { return __float_as_int(value) & 0x7FFFFFFF; }

__device__ inline int BlockMax(int value, int* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  int largest = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) largest = max(largest, scratch[warp]);
  __syncthreads();
  return largest;
}

// max(amax / limit, 2^-100); a NaN stays.
__device__ inline float DynamicScale(int amax_bits, Element type) {
  const float scale = __fdiv_rn(__int_as_float(amax_bits), type == Element::kI8 ? 127.0f : 448.0f);
  const float floor = __uint_as_float(0x0D800000u);
  return scale < floor ? floor : scale;
}

// Divides many values by one scale: correctly rounded quotients, as __fdiv_rn, by multiplying with
// the reciprocal and correcting twice with the exact remainder.
class Divider {
 public:
  __device__ explicit Divider(float scale) {
    scale_ = scale;
    reciprocal_ = __frcp_rn(scale);
    fast_ = scale >= 0x1p-100f && scale <= 0x1p60f;
  }

  __device__ float operator()(float v) const {
    const float first = __fmul_rn(v, reciprocal_);
    // Far from overflow the remainders are exact; quotients far below every code need not be.
    if (!fast_ || !(fabsf(first) < 0x1p60f)) return __fdiv_rn(v, scale_);
    const float second = __fmaf_rn(__fmaf_rn(-first, scale_, v), reciprocal_, first);
    // Of a zero, fused sums lose the sign.
    return copysignf(__fmaf_rn(__fmaf_rn(-second, scale_, v), reciprocal_, second), v);
  }

 private:
  float scale_;
  float reciprocal_;
  bool fast_;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_REDUCE_CUH_
