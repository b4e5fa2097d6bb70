#include "kernels/cuda/device/gemv_slots.cuh"
#include "kernels/cuda/launch/gemv_ring_variants.h"
#include "kernels/cuda/launch/gemv_variants.h"

namespace nibble::cuda {
namespace {

// Whether the kernel of chains, which has no scales of x, is faster than the ring. Times in us:
// H200, of the ring and of chains.
bool IsFasterInChains(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch) {
  if (launch.chains == 1 || args.x_scales != nullptr ||
      !GemvChainFp8RunsAtOnce(view, args, launch)) {
    return false;
  }
  // 4096x14336, 2 and 8 rows: 16.6 and 18.3, 15.9 and 17.1; of one row 15.6, 15.7. 8192x28672, 4
  // rows: 63.5, 57.2.
  if (view.units > kRingHeldUnits) return args.m > 1 && args.m <= 8;
  // Blocks of two or three tiles of 16 outputs at once, where the ring's would have one after
  // another. 4, 8 and 16 rows of 4096x4096: 6.8, 7.7 and 10.1, 6.7, 6.8 and 7.6; 8 and 16 of
  // 6144x4096: 9.5 and 11.7, 8.8 and 10.0.
  constexpr int kMostTiles = 3;
  return args.m > 4 && kSlotsWarps / launch.chains <= kMostTiles &&
         Tiles16(view) > launch.multiprocessors;
}

// One scale a row, or one in all, on compute capability 9.0. Times in us: H200, 1 and 8 rows.
template <class Pairs>
cudaError_t LaunchRows(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                       cudaStream_t stream) {
  if (IsFasterInChains(view, args, launch)) {
    return LaunchGemvChainFp8(view, args, launch, stream);
  }
  using Unit = RingFp8Unit<Pairs>;
  const bool held = view.units <= kRingHeldUnits;
  if (args.m > 8) {
    if (held) return LaunchRing<Pairs, Unit, RingShape<2, 1, 8, 4>>(view, args, launch, stream);
    // 4096x14336, 16 rows: 28.8 against 32.9 with two tiles.
    return LaunchRing<Pairs, Unit, RingShape<2, 1, 16, 0, 2>>(view, args, launch, stream);
  }
  constexpr int kPairRows = 2 * kUnitRows;
  const int64_t pairs = (int64_t{view.n} + kPairRows - 1) / kPairRows;
  const bool few = pairs <= launch.multiprocessors;
  if (held) {
    // 4096x4096 6.36 and 7.69 (longer ring 6.44 and 8.08, two tiles a block 6.73 and 8.40);
    // 6144x4096 7.86 and 9.54 (shorter ring 8.12 and 9.62, two tiles 8.10 and 9.70).
    constexpr int kLongRing = 96 * 1024;
    return LaunchRing<Pairs, Unit, RingShape<1, 1, 16, 2, 1, 8, true>>(
        view, args, launch, stream, few ? kRingBytes : kLongRing);
  }
  if (!few) return LaunchRing<Pairs, Unit, RingShape<1, 2, 16, 0>>(view, args, launch, stream);
  // 4096x14336, in a ring of kRingBytes and all by tensor map 16.84 and 18.56.
  constexpr int kLongRing = 128 * 1024;
  if (args.m == 1) {  // 15.59, of two tiles 16.14
    return LaunchRing<Pairs, Unit, RingShape<1, 1, 16, 0, 1, 8, true>>(view, args, launch, stream,
                                                                       kLongRing);
  }
  // 8 rows 18.37, of one tile 21.21
  return LaunchRing<Pairs, Unit, RingShape<1, 2, 16, 0, 1, 8, true>>(view, args, launch, stream,
                                                                     kLongRing);
}

template <class Pairs>
cudaError_t Launch(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                   cudaStream_t stream) {
  // One scale a row, or one in all: both multiply finished sums.
  const bool scale_a_row =
      view.groups == 1 && (view.rows_per_scale == 1 || view.rows_per_scale >= view.n);
  if (launch.ring && scale_a_row) {
    return LaunchRows<Pairs>(view, args, launch, stream);
  }
  return LaunchGemvUnits<Pairs, Fp8Unit<Pairs>, 1>(view, args, launch, stream);
}

}  // namespace

cudaError_t LaunchGemvFp8(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                          cudaStream_t stream) {
  return launch.f16 ? Launch<F16Pairs>(view, args, launch, stream)
                    : Launch<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
