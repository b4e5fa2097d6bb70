// Eight consecutive elements of a row in registers, packed as they lie in memory.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_EIGHT_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_EIGHT_CUH_

#include "kernels/cuda/device/element.cuh"

namespace nibble::cuda {

template <class T>
struct Eight {
  static constexpr int kParts = static_cast<int>(sizeof(T) / 2);
  uint4 parts[kParts];  // 16 bytes each

  __device__ const T* elements() const { return reinterpret_cast<const T*>(parts); }
  __device__ T* elements() { return reinterpret_cast<T*>(parts); }
  __device__ uint32_t* words() { return reinterpret_cast<uint32_t*>(parts); }
  __device__ const uint32_t* words() const { return reinterpret_cast<const uint32_t*>(parts); }
};

// Elements col..col+7 of a row of `d`, 0 past its end. kVector: d is a multiple of 8 and rows
// are aligned to 16 bytes.
template <bool kVector, class T>
__device__ inline Eight<T> LoadEight(const T* row, int32_t col, int32_t d) {
  Eight<T> v = {};
  if constexpr (kVector) {
    if (col < d) {
      const auto* from = reinterpret_cast<const uint4*>(row + col);
#pragma unroll
      for (int part = 0; part < Eight<T>::kParts; ++part) v.parts[part] = from[part];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (col + i < d) v.elements()[i] = row[col + i];
    }
  }
  return v;
}

template <bool kVector, class T>
__device__ inline void StoreEight(T* row, int32_t col, int32_t d, const Eight<T>& v) {
  if constexpr (kVector) {
    if (col >= d) return;
    auto* to = reinterpret_cast<uint4*>(row + col);
#pragma unroll
    for (int part = 0; part < Eight<T>::kParts; ++part) to[part] = v.parts[part];
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (col + i < d) row[col + i] = v.elements()[i];
    }
  }
}

// Zeros elements at and past the end of a row of `d`.
template <class T>
__device__ inline void ClearPastEnd(Eight<T>& v, int32_t col, int32_t d) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (col + i >= d) v.elements()[i] = T{};
  }
}

template <class T>
__device__ inline void Widen(const Eight<T>& v, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = ToFloat(v.elements()[i]);
}
// One instruction an element, where halves taken as elements cost the upper ones a second.
__device__ inline void Widen(const Eight<__nv_bfloat16>& v, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(v.words()[i] << 16);
    out[2 * i + 1] = __uint_as_float(v.words()[i] & 0xFFFF0000u);
  }
}

__device__ inline uint32_t RoundPair(float a, float b, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline uint32_t RoundPair(float a, float b, __half) {
  const __half2 pair = __floats2half2_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Each value rounded to T.
template <class T>
__device__ inline Eight<T> Round(const float (&v)[8]) {
  Eight<T> out;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out.words()[i] = RoundPair(v[2 * i], v[2 * i + 1], T{});
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) out.elements()[i] = v[i];
  }
  return out;
}

__device__ inline uint32_t AddPair(uint32_t a, uint32_t b, __nv_bfloat16) {
  const __nv_bfloat162 sum = __hadd2_rn(reinterpret_cast<const __nv_bfloat162&>(a),
                                        reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(sum);
}
__device__ inline uint32_t AddPair(uint32_t a, uint32_t b, __half) {
  const __half2 sum =
      __hadd2_rn(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
  return reinterpret_cast<const uint32_t&>(sum);
}

// a + b rounded to T. For 16-bit types one rounding equals that of the binary32 sum: 24 bits are
// more than twice 11 and two.
template <class T>
__device__ inline Eight<T> Add(const Eight<T>& a, const Eight<T>& b) {
  Eight<T> out;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out.words()[i] = AddPair(a.words()[i], b.words()[i], T{});
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) out.elements()[i] = __fadd_rn(a.elements()[i], b.elements()[i]);
  }
  return out;
}

// Magnitudes of T are compared as integers, where a NaN is above every number.
template <class T>
__device__ inline uint32_t LargestMagnitude(const Eight<T>& v) {
  uint32_t largest = 0;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = __vmaxu2(largest, v.words()[i] & 0x7FFF7FFFu);
    return max(largest & 0xFFFFu, largest >> 16);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = max(largest, v.words()[i] & 0x7FFFFFFFu);
    return largest;
  }
}

template <class T>
__device__ inline float MagnitudeToFloat(uint32_t magnitude) {
  if constexpr (sizeof(T) == 2) {
    const auto bits = static_cast<uint16_t>(magnitude);
    return ToFloat(reinterpret_cast<const T&>(bits));
  } else {
    return __uint_as_float(magnitude);
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_EIGHT_CUH_
