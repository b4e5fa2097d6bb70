// How GemvStreamKernel is launched. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_STREAM_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_STREAM_VARIANTS_H_

#include <algorithm>

#include "kernels/cuda/device/gemv_stream.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemv.h"
#include "kernels/cuda/launch/gemv_shared.h"

namespace nibble::cuda {

// The stages of a half: three at least where x has as many parts.
template <class Unit>
void DivideStreamedX(const WeightView& view, int m, int of_half, StreamArgs& places) {
  constexpr int kLeastStages = 3;
  constexpr int kMostRows = 8;
  constexpr int kRoom =
      (kBlockSharedBytes - Unit::kTableBytes - kSlotsWarps * StreamSlots<Unit>::kBytes) / 2;
  static_assert(kRoom >= kLeastStages * kMostRows * kStreamMostOfHalf * kStreamSlots * kUnitXBytes);
  const int part = kStreamSlots * of_half;
  const int parts = ((view.units + 1) / 2 + part - 1) / part;
  places.x_row_bytes = part * kUnitXBytes;
  places.stage_bytes = m * places.x_row_bytes;
  places.stages = std::min({parts, kStreamStages, kRoom / places.stage_bytes});
}

// Weights of launch.of_half > 0.
template <class Pairs, class Unit>
cudaError_t LaunchStream(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                         cudaStream_t stream) {
  const int tiles = Tiles16(view);
  StreamArgs places;
  places.of_half_shift = launch.of_half == 4 ? 2 : launch.of_half - 1;
  places.tiles = std::min(kSlotsWarps / launch.chains,
                          (tiles + launch.multiprocessors - 1) / launch.multiprocessors);
  const int warps = places.tiles * launch.chains;
  places.x_at = (Unit::kTableBytes + warps * StreamSlots<Unit>::kBytes + 127) / 128 * 128;
  DivideStreamedX<Unit>(view, args.m, launch.of_half, places);
  const int bytes =
      std::max(places.x_at + 2 * places.stages * places.stage_bytes, kStreamAloneBytes);
  const int blocks = std::max((tiles + places.tiles - 1) / places.tiles, launch.multiprocessors);
  const auto kernel = GemvStreamKernel<Pairs, Unit>;
  const cudaError_t error = AllowAllShared(kernel);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(blocks)),
                         dim3(static_cast<unsigned>((warps + 2) * 32)), static_cast<size_t>(bytes),
                         stream, view, args, places);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_STREAM_VARIANTS_H_
