// Units of 4-bit weights of the wgmma kernels that take BF16 x alone: decoders of as few
// instructions as can be found, none with three registers of sources. Beside a wgmma of 128
// columns such instructions take longer than two of two sources (kernels/README.md).
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_UNITS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_UNITS_CUH_

#include "kernels/cuda/device/ring_units.cuh"

namespace nibble::cuda {

// The type of scales of 16 bits: known, or told apart at run time.
enum class HalfScales { kBF16, kF16, kEither };

// Entries of the table of pairs (TableUnit) by loads that keep their place: moved among
// multiplications they would take registers of these.
__device__ inline uint32_t LookUp(uint32_t table, uint32_t word, uint32_t select) {
  return LoadShared4Bytes(table + __byte_perm(word, threadIdx.x % 32 * 4, select));
}
__device__ inline void LookUp(uint32_t table, uint32_t word, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int p = 0; p < 4; ++p) pairs[p] = LookUp(table, word, 0x5504u + p * 0x10u);
}

// INT4 of one scale a row and unit, multiplied unscaled.
template <bool kZeroPoints, HalfScales kScaleType>
struct TurnInt4Unit {
  static constexpr bool kBoxed = false;
  static constexpr int kScalesPerUnit = 1;
  using Words = Int4Words<BF16Pairs>;
  static constexpr float kUnscale = Words::kUnscale;
  static constexpr int kTableBytes = 0;
  static constexpr int kCodeBytes = 1024;
  static constexpr int kScaleBytes = kUnitRows * 2;
  static constexpr int kRowScaleBytes = 4;
  static constexpr int kZeroBytes = kZeroPoints ? kUnitRows : 0;
  uint4 words[2];
  uint32_t scales;
  Int4Zero zeros[2] = {Words::kSymmetric, Words::kSymmetric};

  __device__ static int CodesOffset(int lane) { return lane * 16; }
  __device__ static void FillTable(const WeightView&, uint32_t*, int) {}
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t zero_bytes) {
    words[0] = LoadShared16Bytes(codes);
    LoadFactors(scale_bytes, zero_bytes);
  }
  __device__ void LoadFactors(uint32_t scale_bytes, uint32_t zero_bytes) {
    scales = LoadShared4Bytes(scale_bytes);
    if constexpr (kZeroPoints) {
      const uint32_t raw = LoadShared2Bytes(zero_bytes);
      zeros[0] = Words::Zero<0>(raw);
      zeros[1] = Words::Zero<1>(raw);
    }
  }
  __device__ void LoadSecond(uint32_t codes) { words[1] = LoadShared16Bytes(codes + 512); }
  __device__ float2 Scale() const {
    static_assert(kScaleType != HalfScales::kEither);
    if constexpr (kScaleType == HalfScales::kF16) {
      return __half22float2(*reinterpret_cast<const __half2*>(&scales));
    }
    return {__uint_as_float(scales << 16), __uint_as_float(scales & 0xFFFF0000u)};
  }
  __device__ void Decode(uint32_t, int i, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    const uint4& half = words[i / 2];
    Words::Decode(i % 2 == 0 ? half.x : half.z, zeros[0], low);
    Words::Decode(i % 2 == 0 ? half.y : half.w, zeros[1], high);
  }
};

// What the next two have of it: half a unit's words at a time, by kLoads loads kStep bytes apart.
template <bool kZeroPoints, HalfScales kScaleType, int kLoads, int kStep>
struct TurnInt4Halves : TurnInt4Unit<kZeroPoints, kScaleType> {
  uint4 loads[kLoads];

  __device__ void LoadHalf(uint32_t codes) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) loads[i] = LoadShared16Bytes(codes + i * kStep);
  }
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t zero_bytes) {
    LoadHalf(codes);
    this->LoadFactors(scale_bytes, zero_bytes);
  }
  __device__ void LoadSecond(uint32_t codes) { LoadHalf(codes + 512); }
  // Word `load` of the lane's two rows, of 32 inputs from 32 i on.
  __device__ uint32_t Low(int load, int i) const {
    return i % 2 == 0 ? loads[load].x : loads[load].z;
  }
  __device__ uint32_t High(int load, int i) const {
    return i % 2 == 0 ? loads[load].y : loads[load].w;
  }
};

// For x as it lies in memory (quad_units.cuh).
template <bool kZeroPoints, HalfScales kScaleType>
struct TurnQuadInt4Unit : TurnInt4Halves<kZeroPoints, kScaleType, 4, 16> {
  using Words = Int4Words<BF16Pairs>;

  __device__ static int CodesOffset(int lane) { return lane / 4 * 64; }
  __device__ void Decode(uint32_t, int i, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    const int nibble = threadIdx.x % 4 * 4;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      low[q] = Words::Lowest(this->Low(q, i) >> nibble, this->zeros[0].low);
      high[q] = Words::Lowest(this->High(q, i) >> nibble, this->zeros[1].low);
    }
  }
};

// For x in the order of half words (HalfWordSwaps), 16 inputs in a row a multiplication: a lane
// takes the halves of words that half_words.cuh has, of the first 16 of every 32 inputs and of the
// others.
template <bool kZeroPoints, HalfScales kScaleType>
struct TurnHalfWordInt4Unit : TurnInt4Halves<kZeroPoints, kScaleType, 2, 32> {
  using Words = Int4Words<BF16Pairs>;

  __device__ static int CodesOffset(int lane) { return lane / 4 * 64 + lane % 2 * 16; }
  __device__ void Decode(uint32_t, int i, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    const int half = threadIdx.x % 4 / 2 * 8;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Words::DecodeHalf(this->Low(j, i) >> half, this->zeros[0], low[2 * j], low[2 * j + 1]);
      Words::DecodeHalf(this->High(j, i) >> half, this->zeros[1], high[2 * j], high[2 * j + 1]);
    }
  }
};

// Table formats of one scale a row and unit.
struct TurnTableUnit : RingTableUnit<BF16Pairs, 1, 256> {
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t) {
    words[0] = LoadShared16Bytes(codes);
    scales[0] = LoadShared2Floats(scale_bytes);
  }
  __device__ void LoadSecond(uint32_t codes) { words[1] = LoadShared16Bytes(codes + 512); }
  __device__ float2 Scale() const { return scales[0]; }
  __device__ void Decode(uint32_t table, int i, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    const uint4& half = words[i / 2];
    LookUp(table, i % 2 == 0 ? half.x : half.z, low);
    LookUp(table, i % 2 == 0 ? half.y : half.w, high);
  }
};

// What a lane's two rows of a group are multiplied by, in both halves of a word each: of weights
// that are scaled before they are multiplied.
template <bool kZeroPoints_, HalfScales kScaleType>
struct Int4Factors {
  using Words = Int4Words<BF16Pairs>;
  static constexpr float kUnscale = Words::kUnscale;
  static constexpr bool kZeroPoints = kZeroPoints_;
  static constexpr int kScaleSize = 2;  // bytes
  uint32_t scales[2];
  Int4Zero zeros[2] = {Words::kSymmetric, Words::kSymmetric};

  // Of a group of the lane's rows, counted from these addresses on. bf16: the type, of kEither.
  __device__ void LoadGroup(bool bf16, uint32_t scale_bytes, uint32_t zero_bytes, int group) {
    const uint32_t raw = LoadShared4Bytes(scale_bytes + group * kUnitRows * kScaleSize);
    const bool as_they_are =
        kScaleType == HalfScales::kBF16 || (kScaleType == HalfScales::kEither && bf16);
    const float2 widened = __half22float2(*reinterpret_cast<const __half2*>(&raw));
    scales[0] = as_they_are ? __byte_perm(raw, 0, 0x1010) : BF16Pairs::Splat(widened.x);
    scales[1] = as_they_are ? __byte_perm(raw, 0, 0x3232) : BF16Pairs::Splat(widened.y);
    if constexpr (kZeroPoints) {
      const uint32_t raw_zeros = LoadShared2Bytes(zero_bytes + group * kUnitRows);
      zeros[0] = Words::Zero<0>(raw_zeros);
      zeros[1] = Words::Zero<1>(raw_zeros);
    }
  }
  // Eight inputs of row 0 or 1, not scaled yet; and the pair in a word's lowest nibbles.
  __device__ void Values(uint32_t, uint32_t word, int row, uint32_t (&pairs)[4]) const {
    Words::Decode(word, zeros[row], pairs);
  }
  __device__ uint32_t Pair(uint32_t, uint32_t word, int row) const {
    return Words::Lowest(word >> (threadIdx.x % 4 * 4), zeros[row].low);
  }
};

struct TableFactors {
  static constexpr float kUnscale = 1.0f;
  static constexpr bool kZeroPoints = false;
  static constexpr int kScaleSize = 4;
  uint32_t scales[2];

  __device__ void LoadGroup(bool, uint32_t scale_bytes, uint32_t, int group) {
    const float2 of_rows = LoadShared2Floats(scale_bytes + group * kUnitRows * kScaleSize);
    scales[0] = BF16Pairs::Splat(of_rows.x);
    scales[1] = BF16Pairs::Splat(of_rows.y);
  }
  __device__ void Values(uint32_t table, uint32_t word, int, uint32_t (&pairs)[4]) const {
    LookUp(table, word, pairs);
  }
  __device__ uint32_t Pair(uint32_t table, uint32_t word, int) const {
    return LookUp(table, word, 0x5504u + threadIdx.x % 4 * 0x10u);
  }
};

// Of two pairs: -0 added changes no product.
__device__ inline uint32_t Product(uint32_t pair, uint32_t scales) {
  return BF16Pairs::Fma(pair, scales, 0x80008000u);
}

// Half a unit, 64 inputs, of kScales scales a row and unit, scaled.
template <class Factors, int kScales>
struct ScaledHalf : Factors {
  static constexpr int kGroups = (kScales + 1) / 2;  // of its inputs
  static constexpr int kCodeBytes = 512;
  static constexpr int kScaleBytes = kGroups * kUnitRows * Factors::kScaleSize;
  static constexpr int kRowScaleBytes = 2 * Factors::kScaleSize;
  static constexpr int kZeroBytes = Factors::kZeroPoints ? kGroups * kUnitRows : 0;
  uint4 words;

  __device__ void Load(uint32_t codes) { words = LoadShared16Bytes(codes); }
  // 32 inputs of the lane's two rows.
  __device__ void Decode(uint32_t table, int i, uint32_t (&low)[4], uint32_t (&high)[4]) const {
    this->Values(table, i == 0 ? words.x : words.z, 0, low);
    this->Values(table, i == 0 ? words.y : words.w, 1, high);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      low[j] = Product(low[j], this->scales[0]);
      high[j] = Product(high[j], this->scales[1]);
    }
  }
};

// The same for x as it lies in memory (quad_units.cuh): the words of all four lanes of a row.
template <class Factors>
struct ScaledQuad : Factors {
  uint4 words[4];

  __device__ void Load(uint32_t codes) {
#pragma unroll
    for (int q = 0; q < 4; ++q) words[q] = LoadShared16Bytes(codes + q * 16);
  }
  __device__ void Decode(uint32_t table, int i, uint32_t (&low)[4], uint32_t (&high)[4]) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const uint32_t of_low = this->Pair(table, i == 0 ? words[q].x : words[q].z, 0);
      const uint32_t of_high = this->Pair(table, i == 0 ? words[q].y : words[q].w, 1);
      low[q] = Product(of_low, this->scales[0]);
      high[q] = Product(of_high, this->scales[1]);
    }
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_WGMMA_UNITS_CUH_
