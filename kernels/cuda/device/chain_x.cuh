// How x comes into the shared memory of a block of gemv_chain.cuh: [row] of its units of K, in
// kChainXParts parts of part_units units, but the last, each of which a barrier tells.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_X_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_X_CUH_

#include "kernels/cuda/device/chain_stream.cuh"

namespace nibble::cuda {

inline constexpr int kChainXParts = 8;

// How rows of x lie modulo 128 bytes, and what copies them. Bulk copies are faster where rows lie
// alike, and have to be asked for one by one.
enum class ChainX {
  kSkewed,  // each kSharedRowSkew from the row before; bulk copies
  kAlike,   // bulk copies
  // Quarter q of each 128 bytes at q ^ row % 4: four rows that lanes load meet in no bank. All
  // threads copy.
  kSwizzled,
};

// A bulk copy of each part of each row: for up to 8 rows. Barriers count one arrival; those of
// parts that do not exist none.
__device__ inline void CopyChainXInBulk(const GemvArgs& args, const ChainUnits& units,
                                        int32_t part_units, uint32_t x_at, int32_t row_bytes,
                                        uint32_t full, int warp, int lane) {
  if (warp < kChainXParts) {
    const int32_t begin = warp * part_units;
    const int bytes = min(part_units, units.count - begin) * kUnitXBytes;
    if (bytes > 0) {
      if (lane == 0) ArriveExpecting(full + warp * 8, args.m * bytes);
      __syncwarp();
      if (lane < args.m) {
        BulkCopy(x_at + lane * row_bytes + begin * kUnitXBytes,
                 static_cast<const uint16_t*>(args.x) + lane * args.x_stride +
                     (units.first + begin) * kUnitInputs,
                 bytes, full + warp * 8);
      }
    }
    __syncwarp();
  }
}

// In a kSwizzled row: `offset` bytes, a multiple of 32, behind the place `at`, which itself lies in
// the first quarter.
__device__ inline uint32_t SwizzledPlace(uint32_t at, int offset) {
  return (at ^ (offset & 96)) + (offset & ~127);
}

// The bits of a place in kSwizzled rows that the row changes.
__device__ inline uint32_t QuarterSwizzle(int row) { return row % 4 * 32; }

// A lane's operand of MultiplyInChain. rows_at has the lane's own place in 128 bytes, which is in
// quarter 0, changed by QuarterSwizzle where rows are kSwizzled.
template <class Inputs, int kColumns, bool kSwizzled>
struct ChainFragments {
  uint32_t rows_at[kColumns];
  __device__ uint4 Part(int column, int i) const {
    const auto place = [&](int at) {
      return kSwizzled ? SwizzledPlace(rows_at[column], at) : rows_at[column] + at;
    };
    return Inputs::Part([&](int at) { return LoadShared16Bytes(place(at)); },
                        [&](int at) { return LoadShared8Bytes(place(at)); }, i);
  }
};

// 16 bytes a thread and step, of up to 8 kColumns rows, a row by 32, 64 or 128 threads; to
// kSwizzled places: x_at and row_bytes are multiples of 128. Barriers count all threads.
template <int kColumns>
__device__ inline void CopyChainXByThreads(const GemvArgs& args, const ChainUnits& units,
                                           int32_t part_units, uint32_t x_at, int32_t row_bytes,
                                           uint32_t full) {
  constexpr int kPieces = kUnitXBytes / 16;
  static_assert(kSlotsThreads == 512);
  const int shift = kColumns > 1 ? 5 : args.m > 4 ? 6 : 7;  // 16, 8 or 4 rows
  const int row_threads = 1 << shift;
  const int row = static_cast<int>(threadIdx.x) >> shift;
  int piece = static_cast<int>(threadIdx.x) & (row_threads - 1);
  const char* from = static_cast<const char*>(args.x) + row * args.x_stride * 2 +
                     static_cast<int64_t>(units.first) * kUnitXBytes + piece * 16;
  uint32_t to = (x_at + row * row_bytes + piece * 16) ^ QuarterSwizzle(row);
  full = Kept(full);
#pragma unroll 1
  for (int part = 0; part < kChainXParts; ++part) {
    const int end = row < args.m ? min((part + 1) * part_units, units.count) * kPieces : 0;
#pragma unroll 1
    for (; piece < end; piece += row_threads) {
      CopyAsync16Bytes(to, from);
      to += row_threads * 16;
      from += row_threads * 16;
    }
    ArriveAfterAsyncCopies(full);
    full += 8;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_X_CUH_
