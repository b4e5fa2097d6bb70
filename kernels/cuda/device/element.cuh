// Loads, stores and roundings of every element type, the type known at run time or at compile time.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ELEMENT_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ inline T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// `value` rounded to T and widened again.
template <class T>
__device__ inline float RoundTo(float value) {
  return ToFloat(FromFloat<T>(value));
}

// 2^(e-7) * 1.m, subnormals exact, NaN kept.
__device__ inline float E4M3ToFloat(uint32_t code) {
  if ((code & 0x7Fu) == 0x7Fu) return __uint_as_float(((code & 0x80u) << 24) | 0x7FC00000u);
  // As the bits of a binary32 that is 2^-120 times too small.
  const float small = __uint_as_float(((code & 0x80u) << 24) | ((code & 0x7Fu) << 20));
  return __fmul_rn(small, __uint_as_float(0x7B800000u));
}

// Saturates to +-448; NaN stays NaN.
__device__ inline uint8_t FloatToE4M3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

// Saturates to [-128, 127]; NaN gives 0.
__device__ inline uint8_t FloatToI8(float value) {
  if (isnan(value)) return 0;
  return static_cast<uint8_t>(__float2int_rn(fminf(fmaxf(value, -128.0f), 127.0f)));
}

__device__ inline float LoadElement(const void* data, Element type, int64_t index) {
  switch (type) {
    case Element::kF32:
      return static_cast<const float*>(data)[index];
    case Element::kF16:
      return ToFloat(static_cast<const __half*>(data)[index]);
    case Element::kBF16:
      return ToFloat(static_cast<const __nv_bfloat16*>(data)[index]);
    case Element::kF8E4M3:
      return E4M3ToFloat(static_cast<const uint8_t*>(data)[index]);
    case Element::kI8:
      return static_cast<const int8_t*>(data)[index];
  }
  return 0.0f;
}

__device__ inline void StoreElement(void* data, Element type, int64_t index, float value) {
  switch (type) {
    case Element::kF32:
      static_cast<float*>(data)[index] = value;
      return;
    case Element::kF16:
      static_cast<__half*>(data)[index] = FromFloat<__half>(value);
      return;
    case Element::kBF16:
      static_cast<__nv_bfloat16*>(data)[index] = FromFloat<__nv_bfloat16>(value);
      return;
    case Element::kF8E4M3:
      static_cast<uint8_t*>(data)[index] = FloatToE4M3(value);
      return;
    case Element::kI8:
      static_cast<uint8_t*>(data)[index] = FloatToI8(value);
      return;
  }
}

// 8 consecutive elements; `data` is aligned to 16 bytes (32 for float reads in two parts).
template <class T>
__device__ inline void LoadVector(const T* data, float (&v)[8]) {
  constexpr int kParts = static_cast<int>(sizeof(T) / 2);
  uint4 raw[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) raw[part] = reinterpret_cast<const uint4*>(data)[part];
  const T* elements = reinterpret_cast<const T*>(raw);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = ToFloat(elements[i]);
}

template <class T>
__device__ inline void StoreVector(T* data, const float (&v)[8]) {
  constexpr int kParts = static_cast<int>(sizeof(T) / 2);
  uint4 raw[kParts];
  T* elements = reinterpret_cast<T*>(raw);
#pragma unroll
  for (int i = 0; i < 8; ++i) elements[i] = FromFloat<T>(v[i]);
#pragma unroll
  for (int part = 0; part < kParts; ++part) reinterpret_cast<uint4*>(data)[part] = raw[part];
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ELEMENT_CUH_
