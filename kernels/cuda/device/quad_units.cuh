// Units of weights that meet x as it lies in memory. The word of a lane holds eight inputs in a
// row, but wgmma wants of each lane inputs 2t and 2t + 1 of every eight (t = lane % 4): so a lane
// reads the words of all four lanes that share its rows, and takes pair t of each. Four times the
// loads from shared memory, and a shift a pair for INT4, in place of a kernel that arranges x.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_QUAD_UNITS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_QUAD_UNITS_CUH_

#include "kernels/cuda/device/ring_units.cuh"

namespace nibble::cuda {

// Half a unit, 64 inputs, at a time.
struct QuadWords {
  uint4 words[4];  // of lanes q: rows g and g + 8 of 32 inputs, and of the next 32
  uint32_t codes_at;

  __device__ static int CodesOffset(int lane) { return lane / 4 * 64; }
  __device__ void LoadHalf(int half) {
#pragma unroll
    for (int q = 0; q < 4; ++q) words[q] = LoadShared16Bytes(codes_at + half * 512 + q * 16);
  }
  // Word q of 32 inputs from 32 * block on in this half.
  __device__ uint32_t Low(int q, int block) const { return block == 0 ? words[q].x : words[q].z; }
  __device__ uint32_t High(int q, int block) const { return block == 0 ? words[q].y : words[q].w; }
};

// kScales scales of 16 bits a row and unit, of either type: beside the multiplication telling them
// apart costs nothing. Without zero points they are all 8.
template <class Pairs, int kScales, bool kZeroPoints>
struct QuadInt4Unit : QuadWords {
  using Words = Int4Words<Pairs>;
  static constexpr bool kBoxed = false;
  static constexpr int kScalesPerUnit = kScales;
  static constexpr float kUnscale = Words::kUnscale;
  static constexpr int kTableBytes = 0;
  static constexpr int kCodeBytes = 1024;
  static constexpr int kScaleBytes = kScales * kUnitRows * 2;
  static constexpr int kRowScaleBytes = 4;
  static constexpr int kZeroBytes = kZeroPoints ? kScales * kUnitRows : 0;
  uint32_t scales[kScales];
  uint32_t zeros[kScales];

  __device__ static void FillTable(const WeightView&, uint32_t*, int) {}
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t zero_bytes) {
    codes_at = codes;
    LoadHalf(0);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      scales[i] = LoadShared4Bytes(scale_bytes + i * kUnitRows * 2);
      if constexpr (kZeroPoints) zeros[i] = LoadShared2Bytes(zero_bytes + i * kUnitRows);
    }
  }
  __device__ float2 Scale(const WeightView& w, int i) const {
    return WidenHalfScales(w.scale_type == Element::kBF16, scales[i]);
  }
  // The second half's words are asked for as soon as the first one's are decoded.
  __device__ void Decode(const WeightView&, const uint32_t*, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) {
    uint32_t low_zero = Words::kSymmetric.low;
    uint32_t high_zero = Words::kSymmetric.low;
    if constexpr (kZeroPoints) {
      low_zero = Words::template Zero<0>(zeros[i * kScales / 4]).low;
      high_zero = Words::template Zero<1>(zeros[i * kScales / 4]).low;
    }
    const int nibble = threadIdx.x % 4 * 4;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      low[q] = Words::Lowest(Low(q, i % 2) >> nibble, low_zero);
      high[q] = Words::Lowest(High(q, i % 2) >> nibble, high_zero);
    }
    if (i == 1) LoadHalf(1);
  }
};

// kScales absmax values a row and unit.
template <class Pairs, int kScales>
struct QuadTableUnit : QuadWords {
  using Direct = TableUnit<Pairs, kScales, 256>;
  static constexpr bool kBoxed = false;
  static constexpr int kScalesPerUnit = kScales;
  static constexpr float kUnscale = 1.0f;
  static constexpr int kTableBytes = Direct::kTableBytes;
  static constexpr int kCodeBytes = 1024;
  static constexpr int kScaleBytes = kScales * kUnitRows * 4;
  static constexpr int kRowScaleBytes = 8;
  static constexpr int kZeroBytes = 0;
  float2 scales[kScales];

  __device__ static void FillTable(const WeightView& w, uint32_t* table, int threads) {
    Direct::FillTable(w, table, threads);
  }
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t) {
    codes_at = codes;
    LoadHalf(0);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      scales[i] = LoadShared2Floats(scale_bytes + i * kUnitRows * 4);
    }
  }
  __device__ float2 Scale(const WeightView&, int i) const { return scales[i]; }
  // Byte t of the word is pair t.
  __device__ static uint32_t Pair(const uint32_t* table, uint32_t word) {
    const uint32_t lane_bytes = threadIdx.x % 32 * 4;
    const uint32_t select = 0x5504u + threadIdx.x % 4 * 0x10u;
    const char* base = reinterpret_cast<const char*>(table);
    return *reinterpret_cast<const uint32_t*>(base + __byte_perm(word, lane_bytes, select));
  }
  __device__ void Decode(const WeightView&, const uint32_t* table, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      low[q] = Pair(table, Low(q, i % 2));
      high[q] = Pair(table, High(q, i % 2));
    }
    if (i == 1) LoadHalf(1);
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_QUAD_UNITS_CUH_
