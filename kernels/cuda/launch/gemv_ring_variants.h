// Which variant of GemvRingKernel runs and how its shared memory is divided, the same for every
// format. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_RING_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_RING_VARIANTS_H_

#include <algorithm>

#include "kernels/cuda/device/gemv_ring.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemv.h"
#include "kernels/cuda/launch/tensor_map.h"

namespace nibble::cuda {

// Dynamic shared memory of a block: what an SM of compute capability 9.0 lends one, less the
// barriers.
inline constexpr int kRingSharedBytes = 227 * 1024 - 512;
// Weights on their way. More of them are slower: what waits for memory waits longer, x too.
inline constexpr int kRingBytes = 76 * 1024;
// Of these, what goes before the loads of x.
inline constexpr int kRingFirstBytes = 64 * 1024;

// Divides the shared memory of a block: two buffers of partial sums and resident x where a ring of
// two stages still fits beside them. stages is less than 2 where nothing fits.
template <class Unit, class Shape>
RingArgs DivideShared(int m, int units) {
  constexpr int kWeightBytes = RingStage<Unit, Shape>::kBytes;
  RingArgs ring;
  ring.first_stages = std::max(1, kRingFirstBytes / kWeightBytes);
  for (const bool resident : {true, false}) {
    if (resident && Shape::kHeldX) continue;
    for (const int buffers : {2, 1}) {
      ring.x_resident = resident;
      ring.partial_buffers = buffers;
      const RingLayout<Unit, Shape> layout(m, units, ring);
      const int fitting =
          std::max(0, kRingSharedBytes - kRingSlackBytes<Unit> - layout.ring_offset) /
          layout.stage_bytes;
      const int wanted = std::clamp(kRingBytes / kWeightBytes, 2, kRingMaxStages);
      ring.stages = std::min(fitting, wanted) / 2 * 2;
      if (ring.stages >= 2) return ring;
    }
  }
  return ring;
}

template <class Pairs, class Unit, class Shape>
cudaError_t LaunchRing(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                       cudaStream_t stream) {
  const RingArgs ring = DivideShared<Unit, Shape>(args.m, view.units);
  if (ring.stages < 2) return cudaErrorInvalidConfiguration;
  const RingLayout<Unit, Shape> layout(args.m, view.units, ring);
  const auto kernel = GemvRingKernel<Pairs, Unit, Shape>;
  const int bytes = layout.Bytes(ring.stages) + kRingSlackBytes<Unit>;
  // The same for every launch: another thread may be between this call and its own launch.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingSharedBytes);
  if (error != cudaSuccess) return error;
  typename Unit::Map map;
  if constexpr (Unit::kBoxed) {
    const cudaError_t made = MakeUnitMap(view, Shape::kTiles * kUnitRows, Shape::kStageUnits, map);
    if (made != cudaSuccess) return made;
  }
  const int tiles = (view.n + Shape::kTiles * kUnitRows - 1) / (Shape::kTiles * kUnitRows);
  const int blocks = std::min(tiles, launch.multiprocessors);
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Shape::kAllThreads),
                         static_cast<size_t>(bytes), stream, view, args, ring, map);
}

// Work of the busiest block, in tiles of 16 outputs, with `tiles` a block at a time.
inline int64_t BusiestBlock(const WeightView& view, int tiles, int multiprocessors) {
  const int64_t rows = int64_t{tiles} * kUnitRows;
  const int64_t blocks = (view.n + rows - 1) / rows;
  return (blocks + multiprocessors - 1) / multiprocessors * tiles;
}

// WideUnit: for 9 to 16 rows.
template <class Pairs, class Unit, class WideUnit = Unit>
cudaError_t LaunchRingUnits(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                            cudaStream_t stream) {
  constexpr int kHeldUnits = 32;  // whose x registers can hold
  const bool held = view.units <= kHeldUnits;
  if (args.m > 8) {
    if (held)
      return LaunchRing<Pairs, WideUnit, RingShape<2, 1, 8, 4, 1, 1>>(view, args, launch, stream);
    // H200, 16 rows: INT4 4096x14336 27.9 us against 17.5 with two tiles, FP8 28.8 against 32.9.
    if constexpr (Unit::kCodeBytes > 1024) {
      return LaunchRing<Pairs, WideUnit, RingShape<2, 1, 16, 0, 1, 2>>(view, args, launch, stream);
    }
    return LaunchRing<Pairs, WideUnit, RingShape<2, 2, 8, 0, 2, 1>>(view, args, launch, stream);
  }
  if (held)
    return LaunchRing<Pairs, Unit, RingShape<1, 2, 16, 2, 1, 1>>(view, args, launch, stream);
  // Four tiles load x half as often as two, where they keep the blocks as evenly busy and two
  // stages of them are no more than the ring is worth.
  if (Unit::kCodeBytes <= 1024 && BusiestBlock(view, 4, launch.multiprocessors) <=
                                      BusiestBlock(view, 2, launch.multiprocessors)) {
    return LaunchRing<Pairs, Unit, RingShape<1, 4, 8, 0, 1, 1>>(view, args, launch, stream);
  }
  return LaunchRing<Pairs, Unit, RingShape<1, 2, 16, 0, 1, 1>>(view, args, launch, stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_RING_VARIANTS_H_
