// Reductions of a block in a fixed order, and the scales and quotients of the quantizers.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_REDUCE_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_REDUCE_CUH_

#include "kernels/cuda/device/element.cuh"

namespace nibble::cuda {

inline constexpr int kMaxWarps = 32;

inline constexpr int kGroupColumns = 128;

// Sums over a warp of kSlots values a lane: lane l returns that of slot l / (32 / kSlots). The
// order of each sum is that of a butterfly from distance 16 down, whatever kSlots is.
template <int kSlots>
__device__ inline float WarpSums(float (&v)[kSlots]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int offset = 16;
#pragma unroll
  for (int count = kSlots / 2; count > 0; count /= 2, offset /= 2) {
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float sent = upper ? v[i] : v[i + count];
      const float kept = upper ? v[i + count] : v[i];
      v[i] = __fadd_rn(kept, __shfl_xor_sync(0xFFFFFFFFu, sent, offset));
    }
  }
  float sum = v[0];
#pragma unroll
  for (; offset > 0; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, offset));
  return sum;
}

// Sum over the block of kSlots values a thread, the same bits in every thread and for every split
// of kSlots * blockDim.x values into slots: slot s of thread t is value s * blockDim.x + t.
// blockDim.x is a multiple of 32; `scratch` is aligned to 16 bytes, holds kSlots * warps + 4
// values, and nothing else uses it.
template <int kSlots>
__device__ inline float BlockSum(float (&v)[kSlots], float* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const float of_warp = WarpSums(v);
  if (lane % (32 / kSlots) == 0) scratch[lane / (32 / kSlots) * warps + warp] = of_warp;
  if (threadIdx.x < 4) scratch[kSlots * warps + threadIdx.x] = 0.0f;
  __syncthreads();
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int i = 0; i < kSlots * warps; i += 4) {
    const float4 next = *reinterpret_cast<const float4*>(scratch + i);
    sum.x = __fadd_rn(sum.x, next.x);
    sum.y = __fadd_rn(sum.y, next.y);
    sum.z = __fadd_rn(sum.z, next.z);
    sum.w = __fadd_rn(sum.w, next.w);
  }
  return __fadd_rn(__fadd_rn(sum.x, sum.y), __fadd_rn(sum.z, sum.w));
}

// Magnitudes are compared as integers, where a NaN is above every number.
__device__ inline uint32_t MagnitudeBits(float value) {
  return __float_as_uint(value) & 0x7FFFFFFFu;
}

// Largest over the block; `scratch` holds kMaxWarps values, and nothing else uses it.
__device__ inline uint32_t BlockMax(uint32_t value, uint32_t* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  value = __reduce_max_sync(0xFFFFFFFFu, value);
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return __reduce_max_sync(0xFFFFFFFFu, lane < blockDim.x / 32 ? scratch[lane] : 0u);
}

// Divides by one number many times, or after its reciprocal has been waited for: correctly rounded
// quotients, as __fdiv_rn, by multiplying with the reciprocal and correcting twice with the exact
// remainder.
class Divider {
 public:
  __device__ explicit Divider(float divisor) {
    divisor_ = divisor;
    reciprocal_ = __frcp_rn(divisor);
    fast_ = divisor >= 0x1p-100f && divisor <= 0x1p60f;
  }

  __device__ float divisor() const { return divisor_; }

  // Whether values up to `largest` in magnitude can be divided: far from overflow the remainders
  // are exact. Quotients below 2^-100 need not be.
  __device__ bool Covers(float largest) const {
    return fast_ && __fmul_rn(largest, reciprocal_) < 0x1p60f;
  }

  // The remainders are taken negative, so that a zero keeps its sign.
  __device__ float operator()(float v) const {
    const float first = __fmul_rn(v, reciprocal_);
    const float second = __fmaf_rn(-__fmaf_rn(first, divisor_, -v), reciprocal_, first);
    return __fmaf_rn(-__fmaf_rn(second, divisor_, -v), reciprocal_, second);
  }

 private:
  float divisor_;
  float reciprocal_;
  bool fast_;
};

// max(amax / limit, 2^-100); a NaN stays.
__device__ inline float DynamicScale(float amax, bool int8) {
  const Divider limit(int8 ? 127.0f : 448.0f);
  const float scale = limit.Covers(amax) ? limit(amax) : __fdiv_rn(amax, limit.divisor());
  const float floor = 0x1p-100f;
  return scale < floor ? floor : scale;
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_REDUCE_CUH_
