// The GEMV of gemv_stream.cuh for INT4 weights of K <= 4096 and at most two tiles of 16 outputs a
// multiprocessor, K in halves of four chains: a block asks for all of its weights at once and takes
// few enough registers and bytes of shared memory that the blocks of two launches fit a
// multiprocessor. With programmatic dependent launch the next launch's weights come while this one
// multiplies.
//
//   multiprocessor   | launch i: weights | x | multiply | y |
//                          | launch i + 1: weights | wait       | x | multiply | y |
//                                                       | launch i + 2: weights ...
//
//   block           [2 tiles of 16 outputs][8 chains] warps
//
//   device memory   the units of a warp's chain,     x, the units of a chain
//                   four at most
//        | asynchronous copies, a group a unit            | registers; the warps of a chain's two
//        |                                                | tiles copy half each, and meet
//   slots           [warp][4]: codes | scales |      x        [row][chain][4], swizzled
//                   zero points
//        |                                                |
//   registers       decode -> mma.m16n8k16 -> sums * scales, unit by unit
//        | totals in shared memory, where the warp's slots were; the warps of a tile meet
//   y               ((p0 + p1) + p2) + p3 of each half, half 0 + half 1
//
// Bits are those of GemvStreamKernel with the same units.
//
// The grid is one block a multiprocessor, so that no two blocks of a launch share one while another
// has none. Those without a tile hold their place for as long as the others: they multiply what
// happens to lie in their slots, and store nothing. Blocks that leave early are places for two
// blocks of a later launch on one multiprocessor.
//
// Weights are asked for a little later than they could be (HeadStart): all at once they fill the
// multiprocessor's queue of loads for 2 us, and what the block of the launch before asks for in the
// meantime, its x, waits behind them. One that is late keeps the next one early, and so on.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_ONCE_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_ONCE_CUH_

#include "kernels/cuda/device/stream_chains.cuh"

namespace nibble::cuda {

inline constexpr int kOnceShift = 2;  // log2 of the chains of a half
inline constexpr int kOnceOfHalf = 1 << kOnceShift;
inline constexpr int kOnceChains = 2 * kOnceOfHalf;
inline constexpr int kOnceTiles = kSlotsWarps / kOnceChains;  // of a block
inline constexpr int kOnceUnits = 4;                          // of a chain, at most
inline constexpr int kOnceRows = 4;                           // of x, at most
inline constexpr int kOnceXChainBytes = kOnceUnits * kUnitXBytes;
inline constexpr int kOnceXRowBytes = kOnceChains * kOnceXChainBytes;

// Units of half words whose two 8 bytes of x of each 64 lie side by side, so that they are one
// load, as of whole words.
template <class HalfWords>
struct SideBySide : HalfWords {
  using Inputs = PlainInputs;

  // Where a lane stores the first 8 of the 16 bytes that it copies; the others lie 32 behind them.
  // Of each 64 bytes piece q < 4 of 8 bytes, and piece q + 4 behind it, are those of lane
  // q / 2 + q % 2 * 2.
  __device__ static uint32_t Place(int lane) {
    return lane / 4 * 64 + lane % 2 * 16 + lane % 4 / 2 * 8;
  }
};
template <class HalfWords>
inline constexpr bool kTakesHalfWords<SideBySide<HalfWords>> = true;

// Cycles that x of the block beside has before weights are asked for. By measurement on an H200
// (kernels/README.md): one row without zero points is in time anyway, and units of half words begin
// later by some instructions.
template <class Unit>
__device__ inline uint32_t HeadStart(int rows) {
  if (rows == 1 && Unit::kZeroBytes == 0) return 0;
  return kTakesHalfWords<Unit> ? 250 : 350;
}

// A lane's part of the x of a chain: 16 bytes of each row, of one of the two units that its warp
// copies. Through registers: a group of copies would come behind those of all weights.
template <class Unit>
struct OnceX {
  // Of all x in dynamic shared memory, behind the slots.
  static constexpr int kAt = kSlotsWarps * StreamSlots<Unit, kOnceUnits>::kBytes;
  static_assert(kOnceTiles * 32 * 16 == kOnceXChainBytes);
  int rows;  // that the lane copies
  const char* from[kOnceRows];
  uint32_t to;

  // x_at: of the chain's x in shared memory.
  __device__ OnceX(const GemvArgs& args, const StreamWork& work, uint32_t x_at) {
    constexpr int kLanes = kUnitXBytes / 16;  // of a unit
    const int unit = work.part * (32 / kLanes) + work.lane / kLanes;
    rows = static_cast<int>(Kept(unit < work.count ? args.m : 0));
    const char* first = static_cast<const char*>(args.x) +
                        (work.first + (unit << kOnceShift)) * kUnitXBytes + work.lane % kLanes * 16;
#pragma unroll
    for (int row = 0; row < kOnceRows; ++row) {
      from[row] = KeptPointer(first + row * args.x_stride * 2);
    }
    to = Kept(x_at + work.part * 512 + PlaceOf(work.lane));
  }
  // All rows are asked for before one is waited for, by loads without a branch: the compiler would
  // store the first row in front of it.
  __device__ void Copy() const {
    uint4 x[kOnceRows];
#pragma unroll
    for (int row = 0; row < kOnceRows; ++row) x[row] = LoadGlobal16BytesIf(row < rows, from[row]);
#pragma unroll
    for (int row = 0; row < kOnceRows; ++row) {
      if (row < rows) StoreRow(row, x[row]);
    }
  }

 private:
  __device__ static uint32_t PlaceOf(int lane) {
    if constexpr (kTakesHalfWords<Unit>) {
      return Unit::Place(lane);
    } else {
      return lane * 16;
    }
  }
  __device__ void StoreRow(int row, uint4 v) const {
    const uint32_t at = (to ^ StreamSwizzle<Unit>(row)) + row * kOnceXRowBytes;
    if constexpr (kTakesHalfWords<Unit>) {
      StoreShared8Bytes(at, v.x, v.y);
      StoreShared8Bytes(at + 32, v.z, v.w);
    } else {
      StoreShared16Bytes(at, v);
    }
  }
};

// Up to kOnceRows rows of x.
template <class Pairs, class Unit>
__global__ void __launch_bounds__(kSlotsThreads, 2)
    GemvOnceKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args) {
#if __CUDA_ARCH__ >= 900
  using Slots = StreamSlots<Unit, kOnceUnits>;
  using Slot = SlotOf<Unit>;
  static_assert(Unit::kTableBytes == 0 && OnceX<Unit>::kAt % 128 == 0);
  extern __shared__ __align__(128) uint32_t shared_words[];
  LaunchDependents();
  const uint32_t shared = Kept(SharedAddress(shared_words));
  const StreamWork work(w, kOnceShift, static_cast<int32_t>(blockIdx.x) * kOnceTiles);
  const int lane = work.lane;
  const uint32_t own = Kept(shared + work.warp * Slots::kBytes);
  const uint32_t x_chain = shared + OnceX<Unit>::kAt + work.chain * kOnceXChainBytes;
  // In front of a branch, and so of the wait: what is needed before the first copies, before the
  // first unit, and behind the last.
  const OnceX<Unit> copied(args, work, x_chain);
  const int row = min(lane / 4, args.m - 1);
  uint32_t x_at = Kept(x_chain + row * kOnceXRowBytes + StreamedX<Unit>::Offset(lane, row));
  const StreamPlaces<Unit> places(lane, own);
  const StreamOutput<Unit, Slots::kBytes> output(w, args, work, own);
  SpinFor(HeadStart<Unit>(args.m));
  if (work.stored) Slots(w, work, own).FillAll(work.count);
  WaitForDependencies();
  copied.Copy();
  // With the warp of the other tile, whether the weight has that tile or not.
  MeetWarps(1 + kOnceTiles + work.chain, kOnceTiles * 32);

  StreamedX<Unit> x;
  x.is_there = lane / 4 < args.m;
  float sums[4] = {};
  const uint32_t end = work.count * Slot::kBytes;
#pragma unroll 1
  for (uint32_t slot = 0; slot != end; slot += Slot::kBytes) {
    x.Load([x_at](int i) { return StreamedX<Unit>::Place(x_at, i); });
    const Unit unit = places.template Oldest<kOnceUnits>(slot);
    EndAsyncCopyGroup();  // of nothing: the next unit is then the oldest of as many groups
    MultiplyStreamed<Pairs>(w, shared_words, unit, x, sums);
    x_at += kUnitXBytes;
  }
  // All lanes have loaded from the slots, and nothing is on its way to them.
  __syncwarp();
  output.Store(args, sums);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_ONCE_CUH_
