// What the GEMVs that add chains of halves of K share (gemv_stream.cuh, gemv_once.cuh): a warp's
// chain of a tile of 16 outputs, its slots, its x in shared memory, its products, and y.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_STREAM_CHAINS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_STREAM_CHAINS_CUH_

#include "kernels/cuda/device/gemv_slots.cuh"
#include "kernels/cuda/device/half_words.cuh"
#include "kernels/cuda/device/output_factors.cuh"

namespace nibble::cuda {

inline constexpr int kStreamSlots = 2;                  // of a warp
inline constexpr int kStreamSumsPitch = kUnitRows + 4;  // floats from a row of x to the next

// Meets other warps, `threads` threads in all, or lets them know alone.
__device__ inline void MeetWarps(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void ArriveAtWarps(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// What a warp adds: a chain of a tile.
struct StreamWork {
  int lane;
  int warp;
  int shift;      // log2 of the chains of a half
  int part;       // tile of the block
  int chain;      // of both halves
  int32_t tile;   // of the weight
  int32_t half;   // of K
  int32_t first;  // unit, then every (1 << shift)-th
  int32_t count;  // of units
  bool stored;    // the weight has the tile

  __device__ StreamWork(const WeightView& w, int of_half_shift, int32_t block_tile)
      : lane(static_cast<int>(Kept(threadIdx.x % 32))),
        warp(__shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0)),
        shift(of_half_shift),
        part(warp >> (shift + 1)),
        chain(warp & ((2 << shift) - 1)),
        tile(block_tile + part),
        half(chain >> shift) {
    const int32_t of_half = 1 << shift;
    first = (half == 0 ? 0 : w.units / 2) + (chain & (of_half - 1));
    const int32_t end = half == 0 ? w.units / 2 : w.units;
    count = max(0, (end - first + of_half - 1) >> shift);
    stored = tile * kUnitRows < w.n;
  }
};

// A warp's slots, filled and emptied in turn, and where the lane's 16 bytes of the chain's next
// unit lie, counted in 16 bytes (up to 64 GB of codes): an address is then one instruction, where
// pointers of 64 bits that move on take four.
template <class Unit, int kSlots = kStreamSlots>
struct StreamSlots {
  using Slot = SlotOf<Unit>;
  static constexpr int kBytes = kSlots * Slot::kBytes;
  const WeightView& w;
  const int lane;
  const uint32_t to;  // the lane's place in the first slot
  // From a unit of the chain to the next.
  uint32_t code_step;
  uint32_t scale_step;
  uint32_t zero_step;
  uint32_t codes;
  uint32_t scales;
  uint32_t zeros;

  __device__ StreamSlots(const WeightView& weight, const StreamWork& work, uint32_t own)
      : w(weight),
        lane(work.lane),
        to(Kept(own + work.lane * 16)),
        code_step((Unit::kCodeBytes / 16) << work.shift),
        scale_step(Slot::kScaleLanes << work.shift),
        zero_step(Slot::kZeroLanes << work.shift) {
    const uint32_t unit = work.tile * weight.units + work.first;
    codes = unit * (Unit::kCodeBytes / 16) + lane;
    scales = unit * Slot::kScaleLanes + lane;
    zeros = unit * Slot::kZeroLanes + lane - Slot::kScaleLanes;
  }
  // The chain's next unit, where there is one, to slot i; and the end of its group.
  __device__ void Fill(int i, bool is_there) {
    if (is_there) {
      const uint32_t at = to + i * Slot::kBytes;
      // In front of the codes: behind them the compiler branches around the copy all the same, and
      // begins copies twice.
      CopyAsync16BytesIf(lane < Slot::kScaleLanes, at + Slot::kScalesAt,
                         static_cast<const uint4*>(w.scales) + scales);
      if constexpr (Unit::kZeroBytes > 0) {
        CopyAsync16BytesIf(lane >= Slot::kScaleLanes && lane < Slot::kExtraLanes,
                           at + Slot::kScalesAt,
                           reinterpret_cast<const uint4*>(w.zero_points) + zeros);
      }
      const auto* from = static_cast<const uint4*>(w.codes) + codes;
#pragma unroll
      for (int piece = 0; piece < Slot::kPieces; ++piece) {
        CopyAsync16Bytes(at + piece * 512, from + piece * 32);
      }
      codes += code_step;
      scales += scale_step;
      zeros += zero_step;
    }
    EndAsyncCopyGroup();
  }
  // For loops, where they would be computed anew with every unit.
  __device__ void KeepSteps() {
    code_step = Kept(code_step);
    scale_step = Kept(scale_step);
    if constexpr (Unit::kZeroBytes > 0) zero_step = Kept(zero_step);
  }
  // With the first units of `count`.
  __device__ void FillAll(int32_t count) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) Fill(i, i < count);
  }
};

// Where a lane finds what it needs of the unit in a warp's first slot.
template <class Unit>
struct StreamPlaces {
  using Slot = SlotOf<Unit>;
  uint32_t codes;
  uint32_t scales;
  uint32_t zeros;
  uint32_t select = 0;  // of half words

  __device__ StreamPlaces(int lane, uint32_t own)
      : codes(Kept(own + Unit::CodesOffset(lane))),
        scales(Kept(own + Slot::kScalesAt + lane / 4 * Unit::kRowScaleBytes)),
        zeros(own + Slot::kZerosAt + lane / 4 * 2) {
    if constexpr (Unit::kZeroBytes > 0) zeros = Kept(zeros);
    if constexpr (kTakesHalfWords<Unit>) select = Kept(Unit::Select(lane));
  }
  // The oldest unit of kSlots groups, from `slot` bytes behind the first slot on.
  template <int kSlots>
  __device__ Unit Oldest(uint32_t slot) const {
    WaitForAsyncCopies<kSlots - 1>();
    __syncwarp();
    Unit unit;
    if constexpr (kTakesHalfWords<Unit>) unit.select = select;
    unit.Load(codes + slot, scales + slot, zeros + slot);
    return unit;
  }
};

// Bytes of a row of x that a pass of a load through the shared memory touches: of 16 bytes a lane,
// or of 8.
template <class Inputs>
inline constexpr uint32_t kPassBytes = 64;
template <>
inline constexpr uint32_t kPassBytes<HalfWordInputs> = 32;

// Rows of x lie alike in 128 bytes, and the rows that a pass touches, two or four, in banks of
// their own: parts of the 128 bytes change places with the row. This is what a place has added,
// exclusive or.
template <class Unit>
__device__ inline uint32_t StreamSwizzle(int row) {
  return static_cast<uint32_t>(row) * kPassBytes<typename Unit::Inputs> % 128;
}

// A lane's x of a unit, whole before the unit is waited for. Lanes whose row is not there have
// zeros: their sums are not stored, and half a warp that reads nothing makes no pass through the
// shared memory.
template <class Unit>
struct StreamedX {
  using Inputs = typename Unit::Inputs;
  static constexpr int kPass = kPassBytes<Inputs>;
  static constexpr int kPlaces = 128 / kPass;  // of the lane in 128 bytes
  bool is_there;
  uint4 parts[4] = {};

  // Where the lane's x of a unit begins, from the start of its row of it.
  __device__ static uint32_t Offset(int lane, int row) {
    return Inputs::Offset(lane) ^ StreamSwizzle<Unit>(row);
  }
  // Where its i-th place is, if the first is at `first`.
  __device__ static uint32_t Place(uint32_t first, int i) { return first ^ i * kPass; }
  // place_of: an address of each of the lane's places.
  template <class PlaceOf>
  __device__ void Load(const PlaceOf& place_of) {
    if (!is_there) return;
    const auto at = [&](int offset) { return place_of(offset % 128 / kPass) + offset / 128 * 128; };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      parts[i] = Inputs::Part([&](int offset) { return LoadShared16Bytes(at(offset)); },
                              [&](int offset) { return LoadShared8Bytes(at(offset)); }, i);
    }
  }
};

// sums += the products of a unit and of x.
template <class Pairs, class Unit>
__device__ inline void MultiplyStreamed(const WeightView& w, const uint32_t* table,
                                        const Unit& unit, const StreamedX<Unit>& x,
                                        float (&sums)[4]) {
  constexpr int kScales = Unit::kScalesPerUnit;
  float products[kScales][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    MultiplyPart<Pairs>(w, table, unit, i, x.parts[i], products[i * kScales / 4]);
  }
#pragma unroll
  for (int group = 0; group < kScales; ++group) {
    AddScaled(unit.Scale(w, group), products[group], sums);
  }
}

// An element of y before its factors: the sums of its chains, the first at `from`, warp_bytes
// apart.
template <int kOfHalf>
__device__ inline float AddHalves(uint32_t from, int warp_bytes) {
  float parts[2][kOfHalf];
#pragma unroll
  for (int i = 0; i < 2 * kOfHalf; ++i) {
    parts[i / kOfHalf][i % kOfHalf] = LoadShared1Float(from + i * warp_bytes);
  }
  float halves[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    halves[half] = parts[half][0];
#pragma unroll
    for (int i = 1; i < kOfHalf; ++i) halves[half] = __fadd_rn(halves[half], parts[half][i]);
  }
  return __fadd_rn(halves[0], halves[1]);
}

// y of a tile from the sums of its warps, by all of them, half a warp a row. `own`: where the warp
// may leave its sums in the end, kWarpBytes from one warp to the next.
template <class Unit, int kWarpBytes>
struct StreamOutput {
  static_assert(kWarpBytes >= 8 * kStreamSumsPitch * 4);
  // What a lane stores: its sums, then an output of every so many rows.
  struct Place {
    uint32_t sums_at;
    int32_t n;
    int first_row;
  };
  const StreamWork& work;
  const uint32_t own;
  const Place kept;
  const int end_row;
  const uint32_t from;  // the first chain's sum of the output in the first row
  OutputFactors factors{Unit::kUnscale};

  __device__ StreamOutput(const WeightView& w, const GemvArgs& args, const StreamWork& of_warp,
                          uint32_t first_slot)
      : work(of_warp),
        own(first_slot),
        kept(PlaceOf(work.lane)),
        end_row(static_cast<int>(Kept(kept.n < w.n ? args.m : 0))),
        from(Kept(own - work.chain * kWarpBytes +
                  (kept.first_row * kStreamSumsPitch + work.lane % kUnitRows) * 4)) {
    if (kept.first_row < end_row) factors = OutputFactors::Of<Unit>(w, kept.n);
  }
  __device__ Place PlaceOf(int lane) const {
    return {Kept(own + (lane % 4 * 2 * kStreamSumsPitch + lane / 4) * 4),
            work.tile * kUnitRows + lane % kUnitRows, work.chain * 2 + lane / kUnitRows};
  }
  __device__ void Store(const GemvArgs& args, const float (&sums)[4]) const {
    // There are no registers to keep it in beside half words of two scales (gemv_once.cuh).
    const Place at = Unit::kScalesPerUnit == 2 ? PlaceOf(static_cast<int>(Kept(work.lane))) : kept;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      StoreShared1Float(at.sums_at + (i % 2 * kStreamSumsPitch + i / 2 * 8) * 4, sums[i]);
    }
    const int chains = 2 << work.shift;
    MeetWarps(1 + work.part, chains * 32);
#pragma unroll 1
    for (int row = at.first_row; row < end_row; row += chains * 2) {
      const uint32_t first = from + (row - at.first_row) * kStreamSumsPitch * 4;
      const float sum = work.shift == 2   ? AddHalves<4>(first, kWarpBytes)
                        : work.shift == 1 ? AddHalves<2>(first, kWarpBytes)
                                          : AddHalves<1>(first, kWarpBytes);
      StoreOutput(args, row, at.n, factors.Finish(sum));
    }
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_STREAM_CHAINS_CUH_
