// How the shared memory of GemvRingKernel is divided, the same for every format. Included by the
// launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_RING_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_RING_VARIANTS_H_

#include <algorithm>

#include "kernels/cuda/device/gemv_ring.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemv.h"
#include "kernels/cuda/launch/gemv_shared.h"
#include "kernels/cuda/launch/tensor_map.h"

namespace nibble::cuda {

// Weights on their way, all of them asked for before x. More of them are slower: what waits for
// memory waits longer, x too.
inline constexpr int kRingBytes = 76 * 1024;
// Units of K whose x the registers of 16 warps hold, two a warp.
inline constexpr int kRingHeldUnits = 32;

// Divides the shared memory of a block: two buffers of partial sums and resident x where a ring of
// a round's stages, two at least, still fits beside them. stages is 0 where nothing fits.
template <class Unit, class Shape>
RingArgs DivideShared(int m, int units, int ring_bytes) {
  constexpr int kMultiple = std::max(2, Shape::kStagesPerRound);
  const bool fits = int64_t{m} * units * kUnitXBytes < kBlockSharedBytes;
  RingArgs ring;
  for (const bool resident : {true, false}) {
    if (resident && (Shape::kHeldX || !fits)) continue;
    for (const int buffers : {2, 1}) {
      ring.x_resident = resident;
      ring.partial_buffers = buffers;
      const RingLayout<Unit, Shape> layout(m, units, ring);
      const int fitting =
          std::max(0, kBlockSharedBytes - kRingSlackBytes<Unit> - layout.ring_offset) /
          layout.stage_bytes;
      const int wanted =
          std::clamp(ring_bytes / RingStage<Unit, Shape>::kBytes, kMultiple, kRingMaxStages);
      ring.stages = std::min(fitting, wanted) / kMultiple * kMultiple;
      if (ring.stages > 0) return ring;
    }
  }
  return ring;
}

template <class Pairs, class Unit, class Shape>
cudaError_t LaunchRing(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                       cudaStream_t stream, int ring_bytes = kRingBytes) {
  const RingArgs ring = DivideShared<Unit, Shape>(args.m, view.units, ring_bytes);
  if (ring.stages == 0) return cudaErrorInvalidConfiguration;
  const RingLayout<Unit, Shape> layout(args.m, view.units, ring);
  const auto kernel = GemvRingKernel<Pairs, Unit, Shape>;
  const int bytes = layout.Bytes(ring.stages) + kRingSlackBytes<Unit>;
  // The same for every launch: another thread may be between this call and its own launch.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBlockSharedBytes);
  if (error != cudaSuccess) return error;
  typename Unit::Map map;
  if constexpr (Unit::kBoxed) {
    const cudaError_t made = MakeUnitMap(view, Shape::kRows, Shape::kStageUnits, map);
    if (made != cudaSuccess) return made;
  }
  const int tiles = (view.n + Shape::kRows - 1) / Shape::kRows;
  const int blocks = std::min(tiles, launch.multiprocessors);
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Shape::kAllThreads),
                         static_cast<size_t>(bytes), stream, view, args, ring, map);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_RING_VARIANTS_H_
