// The tensor-core instruction of the GEMV kernels, and the decoding of packed words into its
// fragments, for BF16 and F16 activations. Values are exact unless a codec says otherwise.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_MMA_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_MMA_CUH_

#include "kernels/cuda/device/element.cuh"

namespace nibble::cuda {

// (a & mask) | c.
__device__ inline uint32_t AndOr(uint32_t a, uint32_t mask, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(c));
  return d;
}

// Arithmetic on pairs of BF16. PTX of these keeps subnormals.
struct BF16Pairs {
  using Type = __nv_bfloat16;
  __device__ static uint32_t Fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
  }
  // Both halves.
  __device__ static uint32_t Splat(float value) {
    const __nv_bfloat162 pair = __float2bfloat162_rn(value);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ static uint32_t Pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  // sums[16 rows x 8 columns] += a[16 x 16] * b[16 x 8].
  __device__ static void Mma(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                             uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

struct F16Pairs {
  using Type = __half;
  __device__ static uint32_t Fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
  }
  __device__ static uint32_t Splat(float value) {
    const __half2 pair = __float2half2_rn(value);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ static uint32_t Pair(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ static void Mma(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                             uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

// Zero points of one row in the form its words are decoded with.
struct Int4Zero {
  uint32_t low;   // for the nibbles at bits 0..3 of a half word
  uint32_t high;  // for those at bits 4..7
};

// INT4: pairs[p] = inputs 2p, 2p + 1 of a word as (q - zero) / kUnscale, exact.
template <class Pairs>
struct Int4Words;

// Pairs of nibbles, as they are masked, are subnormals of BF16, or numbers of the lowest exponent:
// one product brings them to q / 64, and -zero / 64 is the same for nibbles at either place. Nine
// instructions for eight values, none with three registers of sources: beside a wgmma of 128
// columns such take longer than two of two sources (kernels/README.md).
template <>
struct Int4Words<BF16Pairs> {
  static constexpr float kUnscale = 64.0f;
  static constexpr Int4Zero kSymmetric = {0xBE00BE00u, 0xBE00BE00u};  // -8 / 64
  // The zero point is byte kByte of `zeros`: by way of 128 + zero it becomes -zero / 64, exact.
  template <int kByte>
  __device__ static Int4Zero Zero(uint32_t zeros) {
    const uint32_t biased = __byte_perm(zeros, 0x43u, 0x4040u + kByte * 0x0101u);
    const uint32_t zero = BF16Pairs::Fma(biased, 0xBC80BC80u, 0x40004000u);  // / -64, + 2
    return {zero, zero};
  }
  // The pair in the lowest nibbles of both half words.
  __device__ static uint32_t Lowest(uint32_t word, uint32_t low_zero) {
    return BF16Pairs::Fma(word & 0x000F000Fu, 0x7F007F00u, low_zero);  // 2^127
  }
  // The two pairs in bytes 0 and 2.
  __device__ static void DecodeHalf(uint32_t word, Int4Zero zero, uint32_t& first,
                                    uint32_t& second) {
    first = Lowest(word, zero.low);
    second = BF16Pairs::Fma(word & 0x00F000F0u, 0x7D007D00u, zero.high);  // 2^123
  }
  __device__ static void Decode(uint32_t word, Int4Zero zero, uint32_t (&pairs)[4]) {
    const uint32_t upper = word >> 8;
    DecodeHalf(word, zero, pairs[0], pairs[1]);
    DecodeHalf(upper, zero, pairs[2], pairs[3]);
  }
};

// The nibble becomes mantissa bits of 1024: 1024 + q or 1024 + 16 q.
template <>
struct Int4Words<F16Pairs> {
  static constexpr float kUnscale = 1.0f;
  static constexpr Int4Zero kSymmetric = {0xE408E408u, 0xD480D480u};  // -1032, -72
  // As above, from 1024 + zero.
  template <int kByte>
  __device__ static Int4Zero Zero(uint32_t zeros) {
    const uint32_t biased = __byte_perm(zeros, 0x64u, 0x4040u + kByte * 0x0101u);
    return {F16Pairs::Fma(biased, 0xBC00BC00u, 0x80008000u),
            F16Pairs::Fma(biased, 0xBC00BC00u, 0x63806380u)};
  }
  __device__ static uint32_t Lowest(uint32_t word, uint32_t low_zero) {
    return F16Pairs::Fma(AndOr(word, 0x000F000Fu, 0x64006400u), 0x3C003C00u, low_zero);
  }
  __device__ static void Decode(uint32_t word, Int4Zero zero, uint32_t (&pairs)[4]) {
    const uint32_t upper = word >> 8;
    pairs[0] = Lowest(word, zero.low);
    pairs[1] = F16Pairs::Fma(AndOr(word, 0x00F000F0u, 0x64006400u), 0x2C002C00u, zero.high);
    pairs[2] = Lowest(upper, zero.low);
    pairs[3] = F16Pairs::Fma(AndOr(upper, 0x00F000F0u, 0x64006400u), 0x2C002C00u, zero.high);
  }
};

// FP8: pairs[0..1] = inputs 0..3 of one word. Exponent and mantissa move into place and are
// 2^(bias - 7) too small; subnormals come out right. NaN codes are not handled (see pack.cuh).
template <class Pairs>
struct Fp8Words;

template <>
struct Fp8Words<BF16Pairs> {
  static constexpr float kUnscale = 1.0f;
  __device__ static uint32_t Pair(uint32_t word) {
    // 2^120: left in the sums it would underflow them.
    return BF16Pairs::Fma(AndOr(word, 0x80008000u, (word >> 4) & 0x07F007F0u), 0x7B807B80u,
                          0x80008000u);
  }
  __device__ static void Decode(uint32_t word, uint32_t (&pairs)[2]) {
    pairs[0] = Pair(word << 8);
    pairs[1] = Pair(word);
  }
};

template <>
struct Fp8Words<F16Pairs> {
  static constexpr float kUnscale = 256.0f;
  __device__ static uint32_t Pair(uint32_t word) {
    return AndOr(word, 0x80008000u, (word >> 1) & 0x3F803F80u);
  }
  __device__ static void Decode(uint32_t word, uint32_t (&pairs)[2]) {
    pairs[0] = Pair(word << 8);
    pairs[1] = Pair(word);
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_MMA_CUH_
