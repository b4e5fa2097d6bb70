// x of a stage, of wgmma_stages.cuh or cluster_rings.cuh, in the order in which wgmma meets the
// codes of a unit of INT4.
// The copy engine brings x as it lies in memory; warps beside the producing thread change it in
// place, 8 rows of 64 inputs at a time, where a kernel before (the one that arranges x for the
// other formats and loops) reads and writes all of x while this one waits.
//
//   of 32 inputs    word r of piece t (inputs 8t + 2r and the next)  ->  word t of piece r
//
// Rows are 128 bytes in the 128-byte swizzle: 16-byte piece c of row r lies at piece c ^ r % 8.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ARRANGE_STAGE_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ARRANGE_STAGE_CUH_

#include "kernels/cuda/device/async_copy.cuh"

namespace nibble::cuda {

inline constexpr int kArrangingWarps = 3;  // those of the producer's warpgroup beside its own
inline constexpr int kArrangedRows = 8;    // at a time
inline constexpr int kArrangedBytes = kArrangedRows * 128;

// A lane stores piece lane % 4 of either 32 inputs of a row. Eight lanes store at a time, to two
// rows whose pieces lie in banks of their own.
__device__ inline int ArrangedRow(int of_eight) { return of_eight / 2 + of_eight % 2 * 4; }
__device__ inline uint32_t ArrangedPiece(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + (piece ^ row) * 16);
}

class StageArrangement {
 public:
  __device__ explicit StageArrangement(int lane)
      : from_(ArrangedPiece(ArrangedRow(lane % 8), lane / 8)),
        to_(ArrangedPiece(ArrangedRow(lane / 4), lane % 4)) {}
  // The part of warp `warp` of kArrangingWarps of kRows rows of x, [2 x 64 inputs][kRows], from
  // `at` on.
  template <int kRows>
  __device__ void Arrange(uint32_t at, int warp) const {
    constexpr int kParts = 2 * kRows / kArrangedRows;
#pragma unroll
    for (int part = 0; part < kParts; part += kArrangingWarps) {
      if (part + warp >= kParts) continue;
      const uint32_t eight = at + (part + warp) * kArrangedBytes;
      ArrangeEights<1>(eight + from_, eight + (from_ ^ 64), eight + to_, eight + (to_ ^ 64));
    }
    FenceAsyncProxy();  // wgmma reads it
  }
  // All of them by one warp, two eights at a time: what a lane loads of the second does not wait
  // for what it stores of the first.
  template <int kRows>
  __device__ void ArrangeAll(uint32_t at) const {
    const uint32_t first_from = at + from_;
    const uint32_t first_to = at + to_;
#pragma unroll
    for (int part = 0; part < 2 * kRows / kArrangedRows; part += 2) {
      const uint32_t from = first_from + part * kArrangedBytes;
      const uint32_t to = first_to + part * kArrangedBytes;
      ArrangeEights<2>(from, from ^ 64, to, to ^ 64);
    }
    FenceAsyncProxy();  // wgmma reads it
  }

 private:
  // From and to: the lane's places in the first 32 inputs of the first eight, and in the others.
  template <int kEights>
  __device__ static void ArrangeEights(uint32_t from, uint32_t from_others, uint32_t to,
                                       uint32_t to_others) {
    uint4 words[kEights][2];
    // Of four matrices of 8 rows and 16 bytes a lane gets a word each: what it stores.
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      words[i][0] = LoadSharedMatrices(from + i * kArrangedBytes);
      words[i][1] = LoadSharedMatrices(from_others + i * kArrangedBytes);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      StoreShared16Bytes(to + i * kArrangedBytes, words[i][0]);
      StoreShared16Bytes(to_others + i * kArrangedBytes, words[i][1]);
    }
  }

  const uint32_t from_;
  const uint32_t to_;
};

// x for codes of half words (half_words.cuh), whose multiplications of 16 inputs take 16 in a row.
// Of two pieces of 8 inputs, words are two inputs:
//
//   as it lies    0 1 2 3 | 4 5 6 7   ->   0 4 2 6 | 1 5 3 7
//
// Lane t = lane % 4 of wgmma multiplies word t of either piece: the even words, whose codes lie in
// the lower nibbles of a byte, and those behind them, in the upper ones. So words 1 and 4 change
// places, and 3 and 6: a lane's own, without the others.
class HalfWordSwaps {
 public:
  // A lane swaps words of pieces 2 * (lane % 4) and the next of row lane / 4. At any access rows 2i
  // and 2i + 1 touch the same word of every piece, and other rows other words: 32 banks.
  __device__ explicit HalfWordSwaps(int lane) {
    const int row = lane / 4;
    const int first = row / 2;  // of words 1, 3, 4, 6
    at_ = ArrangedPiece(row, lane % 4 * 2 + first / 2) + (first < 2 ? 4 : 0) + first % 2 * 8;
  }
  // All of kRows rows of x, [2 x 64 inputs][kRows], from `at`, a multiple of 32 bytes, on.
  template <int kRows>
  __device__ void ArrangeAll(uint32_t at) const {
    constexpr int kAtOnce = 4;  // eights of rows
    const uint32_t first = at + at_;
    // Words 1 and 3, or 4 and 6, are 8 bytes apart. Words that change places, 1 and 4 or 3 and 6,
    // lie in other pieces, and at places that differ by 4.
    const uint32_t places[4] = {first, first ^ 8, first ^ 20, first ^ 28};
#pragma unroll
    for (int part = 0; part < 2 * kRows / kArrangedRows; part += kAtOnce) {
      uint32_t words[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < kAtOnce * 4; ++i) {
        words[i / 4][i % 4] = LoadShared4Bytes(places[i % 4] + (part + i / 4) * kArrangedBytes);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce * 4; ++i) {
        StoreShared4Bytes(places[i % 4 ^ 2] + (part + i / 4) * kArrangedBytes, words[i / 4][i % 4]);
      }
    }
    FenceAsyncProxy();  // wgmma reads it
  }

 private:
  uint32_t at_;
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ARRANGE_STAGE_CUH_
