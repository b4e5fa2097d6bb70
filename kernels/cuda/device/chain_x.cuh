// How x comes into the shared memory of a block of gemv_chain.cuh: [row] of its units of K, in
// kChainXParts parts of part_units units, but the last, each of which a barrier tells.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_X_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_X_CUH_

#include "kernels/cuda/device/chain_stream.cuh"

namespace nibble::cuda {

inline constexpr int kChainXParts = 8;

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

// 16 bytes a thread and step, of up to 8 kColumns rows: bulk copies of more than 8 take long to ask
// for. Barriers count all threads.
template <int kColumns>
__device__ inline void CopyChainXByThreads(const GemvArgs& args, const ChainUnits& units,
                                           int32_t part_units, uint32_t x_at, int32_t row_bytes,
                                           uint32_t full) {
  constexpr int kPieces = kUnitXBytes / 16;
  constexpr int kRowThreads = kSlotsThreads / (kColumns * 8);
  const int row = static_cast<int>(threadIdx.x) / kRowThreads;
  int piece = static_cast<int>(threadIdx.x) % kRowThreads;
  const char* from = static_cast<const char*>(args.x) + row * args.x_stride * 2 +
                     static_cast<int64_t>(units.first) * kUnitXBytes + piece * 16;
  uint32_t to = x_at + row * row_bytes + piece * 16;
  full = Kept(full);
#pragma unroll 1
  for (int part = 0; part < kChainXParts; ++part) {
    const int end = row < args.m ? min((part + 1) * part_units, units.count) * kPieces : 0;
#pragma unroll 1
    for (; piece < end; piece += kRowThreads) {
      CopyAsync16Bytes(to, from);
      to += kRowThreads * 16;
      from += kRowThreads * 16;
    }
    ArriveAfterAsyncCopies(full);
    full += 8;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_CHAIN_X_CUH_
