#include "kernels/cuda/launch/gemv_ring_variants.h"
#include "kernels/cuda/launch/gemv_variants.h"

namespace nibble::cuda {
namespace {

// One scale a row, or one in all, on compute capability 9.0. Times in us: H200, 1 and 8 rows.
template <class Pairs>
cudaError_t LaunchRows(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                       cudaStream_t stream) {
  using Unit = RingFp8Unit<Pairs>;
  const bool held = view.units <= kRingHeldUnits;
  if (args.m > 8) {
    if (held) return LaunchRing<Pairs, Unit, RingShape<2, 1, 8, 4>>(view, args, launch, stream);
    // 4096x14336, 16 rows: 28.8 against 32.9 with two tiles.
    return LaunchRing<Pairs, Unit, RingShape<2, 1, 16, 0, 2>>(view, args, launch, stream);
  }
  if (!held) return LaunchRing<Pairs, Unit, RingShape<1, 2, 16, 0>>(view, args, launch, stream);
  constexpr int kPairRows = 2 * kUnitRows;
  const int64_t pairs = (int64_t{view.n} + kPairRows - 1) / kPairRows;
  if (pairs <= launch.multiprocessors) {
    // Both tiles of a block at once, in stages of four units: 4096x4096 6.42 and 8.25, of eight
    // units 6.66 and 8.30.
    return LaunchRing<Pairs, Unit, RingShape<1, 2, 16, 2, 1, 4, true>>(view, args, launch, stream);
  }
  if (pairs <= 2 * launch.multiprocessors) {
    // Most of a block's weights ahead of x: 6144x4096 8.12 and 9.72 against 8.65 and 10.38.
    constexpr int kLongRing = 128 * 1024;
    return LaunchRing<Pairs, Unit, RingShape<1, 2, 16, 2, 1, 8, true>>(view, args, launch, stream,
                                                                       kLongRing);
  }
  // 28672x4096 28.91 and 30.59 against 29.25 and 31.05 of two tiles.
  return LaunchRing<Pairs, Unit, RingShape<1, 1, 16, 2, 1, 8, true>>(view, args, launch, stream);
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
