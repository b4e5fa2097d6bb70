// The output quantizer of the row kernels, on rows that a block holds in registers.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_QUANTIZE_ROWS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_QUANTIZE_ROWS_CUH_

#include "kernels/cuda/device/args.cuh"
#include "kernels/cuda/device/eight.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace nibble::cuda {

// Codes of eight values, the first in the lowest byte.
__device__ inline uint2 PackCodes(const float (&q)[8], bool int8) {
  uint32_t words[2] = {};
  if (int8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i / 4] |= uint32_t{FloatToI8(q[i])} << (8 * (i % 4));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair =
          __nv_cvt_float2_to_fp8x2(make_float2(q[2 * i], q[2 * i + 1]), __NV_SATFINITE, __NV_E4M3);
      words[i / 2] |= pair << (16 * (i % 2));
    }
  }
  return make_uint2(words[0], words[1]);
}

// Quotients outside of Divider's range; apart, for the registers and instructions it would take.
template <class T>
__device__ __noinline__ uint2 QuantizeByDivision(Eight<T> v, float scale, bool int8) {
  float q[8];
  Widen(v, q);
#pragma unroll
  for (int i = 0; i < 8; ++i) q[i] = __fdiv_rn(q[i], scale);
  return PackCodes(q, int8);
}

// round(v / scale); no magnitude of v is above `amax`.
template <class T>
__device__ inline uint2 QuantizeEight(const Eight<T>& v, const Divider& divide, float amax,
                                      bool int8) {
  if (!divide.Covers(amax)) return QuantizeByDivision(v, divide.divisor(), int8);
  float q[8];
  Widen(v, q);
#pragma unroll
  for (int i = 0; i < 8; ++i) q[i] = divide(q[i]);
  return PackCodes(q, int8);
}

// Largest of the magnitudes of sixteen threads, which hold one group of 128 columns.
__device__ inline uint32_t GroupMax(uint32_t magnitude) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    magnitude = max(magnitude, __shfl_xor_sync(0xFFFFFFFFu, magnitude, offset));
  }
  return magnitude;
}

// Codes of columns col..col+7, and their scale where they are the first of it.
template <bool kVector, class T>
__device__ inline void StoreCodes(const RowOpArgs& args, int64_t row, int32_t col,
                                  const Eight<T>& v, const Divider& divide, float amax) {
  if (col >= args.d) return;
  if (args.quant == Quant::kPerToken && col == 0) {
    args.scales[row * args.scales_stride] = divide.divisor();
  }
  if (args.quant == Quant::kPerGroup && col % kGroupColumns == 0) {
    args.scales[row * args.scales_stride + col / kGroupColumns] = divide.divisor();
  }
  const uint2 codes = QuantizeEight(v, divide, amax, args.y_type == Element::kI8);
  auto* to = static_cast<uint8_t*>(args.y) + row * args.y_stride + col;
  if constexpr (kVector) {
    *reinterpret_cast<uint2*>(to) = codes;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = i < 4 ? codes.x : codes.y;
      if (col + i < args.d) to[i] = static_cast<uint8_t>(word >> (8 * (i % 4)));
    }
  }
}

// y, and its scales, of a row of which the thread holds columns first + slot * step + 0..7.
// `scratch` is shared memory of kMaxWarps words that nothing else uses.
template <bool kVector, class T, int kSlots>
__device__ inline void StoreQuantized(const RowOpArgs& args, int64_t row, int32_t first,
                                      int32_t step, const Eight<T> (&v)[kSlots],
                                      uint32_t* scratch) {
  if (args.quant == Quant::kNone) {
    auto* to = static_cast<T*>(args.y) + row * args.y_stride;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      StoreEight<kVector>(to, first + slot * step, args.d, v[slot]);
    }
    return;
  }
  const bool int8 = args.y_type == Element::kI8;
  if (args.quant == Quant::kPerToken) {
    uint32_t largest = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) largest = max(largest, LargestMagnitude(v[slot]));
    const float amax = MagnitudeToFloat<T>(BlockMax(largest, scratch));
    const Divider divide(DynamicScale(amax, int8));
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      StoreCodes<kVector>(args, row, first + slot * step, v[slot], divide, amax);
    }
    return;
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const uint32_t largest = LargestMagnitude(v[slot]);
    const bool grouped = args.quant == Quant::kPerGroup;
    const float amax = MagnitudeToFloat<T>(grouped ? GroupMax(largest) : largest);
    const Divider divide(grouped ? DynamicScale(amax, int8) : args.static_scale);
    StoreCodes<kVector>(args, row, first + slot * step, v[slot], divide, amax);
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_QUANTIZE_ROWS_CUH_
