// silu(gate) * up, eight columns at a time.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_SILU_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_SILU_CUH_

#include "kernels/cuda/device/eight.cuh"

namespace nibble::cuda {

// The largest magnitude for SiluOfUsual: its exponential and its reciprocal stay normal numbers.
inline constexpr float kUsualGate = 80.0f;

// v / (1 + exp(-v)), up to about six units of binary32's last place from exact: for results of 16
// bits.
__device__ inline float SiluOfUsual(float v) {
  // exp(-v) = 2^high * (1 + rest), where `rest` is what rounding lost of high.
  const float high = __fmul_rn(v, -0x1.715476p+0f);
  const float rest = __fmaf_rn(high, -0x1.62E430p-1f, -v);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(high));
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;"
      : "=f"(reciprocal)
      : "f"(__fadd_rn(1.0f, __fmaf_rn(power, rest, power))));
  return __fmul_rn(v, reciprocal);
}

template <class T>
__device__ inline Eight<T> MultiplyRounded(const float (&silu)[8], const Eight<T>& up) {
  float t[8];
  float u[8];
  Widen(Round<T>(silu), t);
  Widen(up, u);
#pragma unroll
  for (int i = 0; i < 8; ++i) t[i] = __fmul_rn(t[i], u[i]);
  return Round<T>(t);
}

// By the formula, exponentials that overflow included; apart, for the instructions it takes.
template <class T>
__device__ __noinline__ Eight<T> SiluMulByFormula(Eight<T> gate, Eight<T> up) {
  float v[8];
  Widen(gate, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __fdiv_rn(v[i], __fadd_rn(1.0f, expf(-v[i])));
  return MultiplyRounded(v, up);
}

// r(r(gate / (1 + exp(-gate))) * up), r rounding to T.
template <class T>
__device__ inline Eight<T> SiluMul(const Eight<T>& gate, const Eight<T>& up) {
  if constexpr (sizeof(T) == 2) {
    if (MagnitudeToFloat<T>(LargestMagnitude(gate)) <= kUsualGate) {
      float v[8];
      Widen(gate, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = SiluOfUsual(v[i]);
      return MultiplyRounded(v, up);
    }
  }
  return SiluMulByFormula(gate, up);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_SILU_CUH_
