// Activations made ready for a matmul kernel: widened, quantized and decoded, padded, or split.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ACTIVATIONS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ACTIVATIONS_CUH_

#include "kernels/cuda/device/args.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace nibble::cuda {

inline constexpr int kActivationThreads = 256;

// out [m, k] binary32 = the activations as the matmul multiplies them: quantized ones are
// f32(e4m3 code * scale). One block a row.
__global__ void __launch_bounds__(kActivationThreads)
    WidenActivationsKernel(const __grid_constant__ ActivationArgs args, float* out) {
  __shared__ uint32_t scratch[kMaxWarps];
  const int64_t row = blockIdx.x;
  const int64_t base = row * args.x_stride;
  float* to = out + row * args.k;
  const auto load = [&](int32_t k) {
    if (k >= args.k) return 0.0f;
    return LoadElement(args.x, args.x_type, base + (args.order == nullptr ? k : args.order[k]));
  };
  const auto decoded = [](float v, float scale) {
    return __fmul_rn(E4M3ToFloat(FloatToE4M3(__fdiv_rn(v, scale))), scale);
  };
  float scale = args.static_scale;
  if (args.x_type != Element::kF8E4M3 && args.quant == Quant::kPerToken) {
    uint32_t amax = 0;
    for (int32_t k = threadIdx.x; k < args.k; k += kActivationThreads) {
      amax = max(amax, MagnitudeBits(load(k)));
    }
    scale = DynamicScale(__uint_as_float(BlockMax(amax, scratch)), false);
  }
  for (int32_t begin = 0; begin < args.k; begin += kActivationThreads) {
    const int32_t k = begin + static_cast<int32_t>(threadIdx.x);
    float v = load(k);
    if (args.x_type == Element::kF8E4M3) {
      const int32_t group = args.quant == Quant::kPerGroup ? k / kGroupColumns : 0;
      if (k < args.k) v = __fmul_rn(v, args.x_scales[row * args.x_scales_stride + group]);
    } else if (args.quant == Quant::kPerGroup) {
      // Four warps hold one group of 128 columns; a warp finds its own largest and shares it.
      uint32_t amax = MagnitudeBits(v);
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, offset));
      }
      const int warp = static_cast<int>(threadIdx.x) / 32;
      if (threadIdx.x % 32 == 0) scratch[warp] = amax;
      __syncthreads();
      const int of_group = warp / 4 * 4;
      amax = max(max(scratch[of_group], scratch[of_group + 1]),
                 max(scratch[of_group + 2], scratch[of_group + 3]));
      __syncthreads();
      v = decoded(v, DynamicScale(__uint_as_float(amax), false));
    } else if (args.quant != Quant::kNone) {
      v = decoded(v, scale);
    }
    if (k < args.k) to[k] = v;
  }
}

inline constexpr int kArrangeThreads = 128;

// Where columns come to: as they lie, or in the order in which wgmma meets the codes of a unit. For
// codes of 4 bits column 8t + 4s + 2h + j of each 32 (t < 4, the others < 2) comes to 16s + 8h + 2t
// + j, for those of FP8 column 4t + 2j + h of each 16 to 8h + 2t + j.
enum class Columns { kAsTheyLie, kOf4Bits, kOfFp8 };

// out [m, k_padded] = x of 16-bit elements in `order` (may be null), 0 past column k, its columns
// in kColumns. A block x is a row, a thread of the blocks y moves 8 columns of it. kWhole: in 16
// bytes, where they are as they come, aligned, and no fewer.
//
// The matmul waits for all that this kernel does behind its own wait: addresses are known before,
// and a branch in front of the wait keeps them there.
template <bool kWhole, Columns kColumns>
__global__ void __launch_bounds__(kArrangeThreads)
    ArrangeActivationsKernel(const uint16_t* x, int64_t x_stride, const int32_t* order, int32_t k,
                             uint16_t* out, int32_t k_padded) {
  LaunchDependents();
  const int32_t eights = k_padded / 8;
  const auto eight = static_cast<int32_t>(blockIdx.y * kArrangeThreads + threadIdx.x);
  const auto row = static_cast<int64_t>(blockIdx.x);
  // Threads past the end have a part in the exchange.
  const bool there = eight < eights;
  size_t from_at = __cvta_generic_to_global(x + row * x_stride) + int64_t{eight} * 16;
  size_t to_at = __cvta_generic_to_global(out) + (row * eights + eight) * 16;
  asm volatile("" : "+l"(from_at), "+l"(to_at));
  if (!__any_sync(0xFFFFFFFFu, there)) {
    WaitForDependencies();
    return;
  }
  WaitForDependencies();
  uint32_t pairs[4] = {};
  if constexpr (kWhole) {
    if (there) {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                   : "l"(from_at)
                   : "memory");
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int32_t col = eight * 8 + i;
      const int32_t of_x = order == nullptr || col >= k ? col : order[col];
      const uint32_t element = col < k ? x[row * x_stride + of_x] : 0u;
      pairs[i / 2] |= element << (i % 2 * 16);
    }
  }
  if constexpr (kColumns == Columns::kOfFp8) {
    // Two lanes hold 16 columns: the first stores the even ones, the second the odd ones.
    const bool odd = threadIdx.x % 2 != 0;
    uint32_t kept[2];
    uint32_t got[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t evens = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x5410);
      const uint32_t odds = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x7632);
      kept[i] = odd ? odds : evens;
      got[i] = __shfl_xor_sync(0xFFFFFFFFu, odd ? evens : odds, 1);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pairs[i] = odd ? got[i] : kept[i];
      pairs[i + 2] = odd ? kept[i] : got[i];
    }
  } else if constexpr (kColumns == Columns::kOf4Bits) {
    // Four lanes hold 32 columns, lane t those from 8t on, and store 16 contiguous bytes each: pair
    // t of every lane. (Pairs stored one by one, in 4 bytes, made the matmul 3 us slower.)
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
      const bool set = (threadIdx.x & bit) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & bit) != 0) continue;
        const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, set ? pairs[i] : pairs[i | bit], bit);
        pairs[i] = set ? got : pairs[i];
        pairs[i | bit] = set ? pairs[i | bit] : got;
      }
    }
  }
  if (there) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to_at), "r"(pairs[0]),
                 "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
  }
}

// x in `order` (may be null) = high + low exactly, both BF16: 11 significant bits are 8 and the
// rest. An infinity or NaN stays in `high` alone. [m, k_padded] each, 0 past column k.
__global__ void __launch_bounds__(kActivationThreads)
    SplitActivationsKernel(const __half* x, int64_t x_stride, const int32_t* order, int64_t m,
                           int32_t k, __nv_bfloat16* high, __nv_bfloat16* low, int32_t k_padded) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kActivationThreads + threadIdx.x;
  if (index >= m * k_padded) return;
  const int64_t row = index / k_padded;
  const auto col = static_cast<int32_t>(index % k_padded);
  const int32_t from = order == nullptr || col >= k ? col : order[col];
  const float v = col < k ? ToFloat(x[row * x_stride + from]) : 0.0f;
  const float top = RoundTo<__nv_bfloat16>(v);
  high[index] = FromFloat<__nv_bfloat16>(top);
  low[index] = FromFloat<__nv_bfloat16>(isfinite(top) ? __fsub_rn(v, top) : 0.0f);
}

// y [m, n] of y_type = round(sums + bias), sums [m, n] binary32 with rows sums_stride apart.
__global__ void __launch_bounds__(kActivationThreads)
    BiasAndRoundKernel(const float* sums, int64_t sums_stride, const float* bias, int64_t m,
                       int32_t n, void* y, Element y_type, int64_t y_stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kActivationThreads + threadIdx.x;
  if (index >= m * n) return;
  const int64_t row = index / n;
  const auto col = static_cast<int32_t>(index % n);
  const float added = bias == nullptr ? 0.0f : bias[col];
  StoreElement(y, y_type, row * y_stride + col, __fadd_rn(sums[row * sums_stride + col], added));
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ACTIVATIONS_CUH_
