// How the ring GEMV reads one packed unit of each format from shared memory.
//
// A stage of the ring holds, for each of the block's tiles of 16 rows, the codes of kWarps
// consecutive units, then their scales, then their zero points, each as it lies in device memory.
// Load takes the shared-window addresses of a lane's own: 16 bytes of codes in each 512, and those
// of its two rows, kRowScaleBytes of scales and 2 bytes of zero points.
//
// The codes of a kBoxed unit are rows of 128 bytes, copied by a tensor map: the stage holds the
// tiles of one unit, then those of the next.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_RING_UNITS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_RING_UNITS_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemv_units.cuh"

namespace nibble::cuda {

// What the copies of a unit's codes need beside the weight's view.
struct NoMap {};

// kScales scales of 16 bits a row and unit. Without zero points they are all 8.
template <class Pairs, int kScales, bool kZeroPoints, bool kBF16Scales>
struct RingInt4Unit {
  using Map = NoMap;
  using Inputs = PlainInputs;
  static constexpr bool kBoxed = false;
  static constexpr int kScalesPerUnit = kScales;
  static constexpr float kUnscale = Int4Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  static constexpr int kCodeBytes = 1024;
  static constexpr int kScaleBytes = kScales * kUnitRows * 2;
  static constexpr int kRowScaleBytes = 4;
  static constexpr int kZeroBytes = kZeroPoints ? kScales * kUnitRows : 0;
  uint4 words[2];
  uint32_t scales[kScales];
  uint32_t zeros[kScales];

  __device__ static int CodesOffset(int lane) { return lane * 16; }
  __device__ static void FillTable(const WeightView&, uint32_t*, int) {}
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t zero_bytes) {
    words[0] = LoadShared16Bytes(codes);
    words[1] = LoadShared16Bytes(codes + 512);
    LoadScales(scale_bytes, zero_bytes);
  }
  __device__ void LoadScales(uint32_t scale_bytes, uint32_t zero_bytes) {
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      scales[i] = LoadShared4Bytes(scale_bytes + i * kUnitRows * 2);
      if constexpr (kZeroPoints) {
        zeros[i] = LoadShared2Bytes(zero_bytes + i * kUnitRows);
      }
    }
  }
  __device__ float2 Scale(const WeightView&, int i) const {
    return WidenHalfScales(kBF16Scales, scales[i]);
  }
  __device__ void Decode(const WeightView&, const uint32_t*, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    using Words = Int4Words<Pairs>;
    Int4Zero low_zero = Words::kSymmetric;
    Int4Zero high_zero = Words::kSymmetric;
    if constexpr (kZeroPoints) {
      low_zero = Words::template Zero<0>(zeros[i * kScales / 4]);
      high_zero = Words::template Zero<1>(zeros[i * kScales / 4]);
    }
    const uint4& half = words[i / 2];
    Words::Decode(i % 2 == 0 ? half.x : half.z, low_zero, low);
    Words::Decode(i % 2 == 0 ? half.y : half.w, high_zero, high);
  }
};

// kPitch: of the table's entries (see TableUnit).
template <class Pairs, int kScales, int kPitch>
struct RingTableUnit {
  using Map = NoMap;
  using Inputs = PlainInputs;
  using Direct = TableUnit<Pairs, kScales, kPitch>;
  static constexpr bool kBoxed = false;
  static constexpr int kScalesPerUnit = kScales;
  static constexpr float kUnscale = 1.0f;
  static constexpr int kTableBytes = Direct::kTableBytes;
  static constexpr int kCodeBytes = 1024;
  static constexpr int kScaleBytes = kScales * kUnitRows * 4;
  static constexpr int kRowScaleBytes = 8;
  static constexpr int kZeroBytes = 0;
  uint4 words[2];
  float2 scales[kScales];

  __device__ static int CodesOffset(int lane) { return lane * 16; }
  // By `threads` threads.
  __device__ static void FillTable(const WeightView& w, uint32_t* table, int threads) {
    Direct::FillTable(w, table, threads);
  }
  __device__ void Load(uint32_t codes, uint32_t scale_bytes, uint32_t zero_bytes) {
    words[0] = LoadShared16Bytes(codes);
    words[1] = LoadShared16Bytes(codes + 512);
    LoadScales(scale_bytes, zero_bytes);
  }
  __device__ void LoadScales(uint32_t scale_bytes, uint32_t) {
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      scales[i] = LoadShared2Floats(scale_bytes + i * kUnitRows * 4);
    }
  }
  __device__ float2 Scale(const WeightView&, int i) const { return scales[i]; }
  __device__ void Decode(const WeightView&, const uint32_t* table, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    const uint4& half = words[i / 2];
    Direct::Lookup(table, i % 2 == 0 ? half.x : half.z, low);
    Direct::Lookup(table, i % 2 == 0 ? half.y : half.w, high);
  }
};

// The pairs of a unit's table whose low code is `low_code`, by a warp: the other values, and where
// their pairs lie, are constants of the instructions. Nothing for units without a table.
template <class Pairs, class Unit>
__device__ inline void FillTableByWarps(const WeightView& w, uint32_t* table, int low_code,
                                        int lane) {
  if constexpr (Unit::kTableBytes > 0) {
    constexpr int kPitch = Unit::kTableBytes / 256 / 4;
    const float low = w.table[low_code];
    uint32_t* to = table + low_code * kPitch + lane;
#pragma unroll
    for (int high = 0; high < 16; ++high) {
      to[high * 16 * kPitch] = Pairs::Pair(low, w.table[high]);
    }
  }
}

// FP8 with one scale a row, which multiplies the finished sum. Rows of a unit are 128 bytes in the
// 128-byte swizzle: 16 bytes of row r lie at 16 * (their place ^ r % 8).
template <class Pairs>
struct RingFp8Unit {
  using Map = CUtensorMap;
  using Inputs = EvenOddInputs<4>;
  static constexpr bool kBoxed = true;
  static constexpr int kScalesPerUnit = 0;
  static constexpr float kUnscale = Fp8Words<Pairs>::kUnscale;
  static constexpr int kTableBytes = 0;
  static constexpr int kCodeBytes = 2048;
  static constexpr int kScaleBytes = 0;
  static constexpr int kRowScaleBytes = 0;
  static constexpr int kZeroBytes = 0;
  uint4 words[4];  // of 32 inputs each: 16 of row g and of row g + 8, then 16 more

  // Of a lane's first matrix row (LoadSharedMatrices), from the start of a unit.
  __device__ static int CodesOffset(int lane) {
    const int row = lane % 16;
    return row * 128 + ((lane / 16) ^ (row % 8)) * 16;
  }
  __device__ void Load(uint32_t codes, uint32_t, uint32_t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = LoadSharedMatrices(codes ^ (i * 32));
  }
  __device__ float2 Scale(const WeightView&, int) const { return {1.0f, 1.0f}; }
  __device__ void Decode(const WeightView&, const uint32_t*, int i, uint32_t (&low)[4],
                         uint32_t (&high)[4]) const {
    DecodeFp8Words<Pairs>(words[i].x, words[i].z, low);
    DecodeFp8Words<Pairs>(words[i].y, words[i].w, high);
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_RING_UNITS_CUH_
