// How the kernels of gemv_spread.cuh are launched. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SPREAD_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SPREAD_VARIANTS_H_

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/cuda/device/gemv_spread.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemv.h"
#include "kernels/cuda/launch/gemv_ring_variants.h"
#include "kernels/cuda/launch/gemv_shared.h"

namespace nibble::cuda {

// Blocks that share x. Of four, fewer run at a time: 120 on an H200 instead of 132.
inline constexpr int kSpreadCluster = 2;

// How many clusters of kSpreadCluster blocks of one kernel run at a time, 0 where the device runs
// none. Asked once a device: the answer takes longer than a launch.
class SpreadClusters {
 public:
  template <class Kernel>
  cudaError_t Find(Kernel kernel, int threads, int& most) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    const bool kept = device < static_cast<int>(known_.size());
    if (kept) most = known_[device].load(std::memory_order_relaxed) - 1;
    if (kept && most >= 0) return cudaSuccess;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kSpreadCluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kSpreadCluster);
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = kBlockSharedBytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&most, kernel, &config) != cudaSuccess) {
      cudaGetLastError();  // not one of the launch to come
      most = 0;
    }
    if (kept) known_[device].store(most + 1, std::memory_order_relaxed);
    return cudaSuccess;
  }

 private:
  std::array<std::atomic<int>, 64> known_ = {};  // one more than the answer; 0: not asked
};

// places.cluster is set here: kSpreadCluster, or 1 where the device runs no such clusters.
template <class Kernel>
cudaError_t LaunchInClusters(Kernel kernel, SpreadClusters& clusters, int tiles, int threads,
                             int bytes, const WeightView& view, const GemvArgs& args,
                             const GemvLaunch& launch, SpreadArgs places, cudaStream_t stream) {
  cudaError_t error = AllowAllShared(kernel);
  int most = 0;
  if (error == cudaSuccess) error = clusters.Find(kernel, threads, most);
  if (error != cudaSuccess) return error;
  places.cluster = most > 0 ? kSpreadCluster : 1;
  if (most == 0) most = launch.multiprocessors;
  const int wanted = (tiles + places.cluster - 1) / places.cluster;
  const int blocks = std::min(wanted, most) * places.cluster;
  return LaunchDependentClusters(places.cluster, kernel, dim3(static_cast<unsigned>(blocks)),
                                 dim3(static_cast<unsigned>(threads)), static_cast<size_t>(bytes),
                                 stream, view, args, places);
}

// x of at most kRingHeldUnits units.
template <class Pairs, class Unit, class Shape>
cudaError_t LaunchSpreadHeld(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                             cudaStream_t stream) {
  static_assert(Shape::kHeld * kSlotsWarps == kRingHeldUnits);
  constexpr int kMostRows = Shape::kColumns * 8;
  constexpr int kBefore = Unit::kTableBytes + kSlotsWarps * Shape::kSlots * SlotOf<Unit>::kBytes;
  constexpr int kMostX = kMostRows * (kRingHeldUnits * kUnitXBytes + kSharedRowSkew);
  constexpr int kMostPartials = 2 * kSlotsWarps * kMostRows * Shape::kPartialPitch * 4;
  static_assert(kBefore + std::max(kMostX, kMostPartials) <= kBlockSharedBytes);
  SpreadArgs places;
  places.x_at = kBefore;
  places.x_row_bytes = view.units * kUnitXBytes + kSharedRowSkew;
  places.partials.partials_at = kBefore;
  places.partials.warp_floats = args.m * Shape::kPartialPitch;
  places.partials.buffer_floats = kSlotsWarps * places.partials.warp_floats;
  const int bytes =
      kBefore + std::max(args.m * places.x_row_bytes, 2 * places.partials.buffer_floats * 4);
  static SpreadClusters clusters;
  return LaunchInClusters(GemvSpreadHeldKernel<Pairs, Unit, Shape>, clusters,
                          SlotsTiles<Shape>(view), kSlotsThreads, bytes, view, args, launch, places,
                          stream);
}

// x of more units, in as many stages as fit, one at least for each half of the warps.
template <class Pairs, class Unit, class Shape>
cudaError_t LaunchSpread(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                         cudaStream_t stream) {
  constexpr int kMostRows = Shape::kColumns * 8;
  constexpr int kBefore = Unit::kTableBytes + kSlotsWarps * Shape::kSlots * SlotOf<Unit>::kBytes;
  constexpr int kRowBytes = kSpreadStageUnits * kUnitXBytes + kSharedRowSkew;
  constexpr int kMostPartials = kSlotsWarps * kMostRows * Shape::kPartialPitch * 4;
  static_assert(kBefore + kMostPartials + kSpreadHalves * kMostRows * kRowBytes <=
                kBlockSharedBytes);
  SpreadArgs places;
  places.partials.partials_at = kBefore;
  places.partials.warp_floats = args.m * Shape::kPartialPitch;
  places.partials.buffer_floats = kSlotsWarps * places.partials.warp_floats;
  places.x_at = kBefore + places.partials.buffer_floats * 4;
  places.x_row_bytes = kRowBytes;
  const int stage_bytes = args.m * kRowBytes;
  const int fitting = (kBlockSharedBytes - places.x_at) / stage_bytes;
  places.x_stages = std::min(fitting, kSpreadMaxStages) / kSpreadHalves * kSpreadHalves;
  const int bytes = places.x_at + places.x_stages * stage_bytes;
  static SpreadClusters clusters;
  return LaunchInClusters(GemvSpreadKernel<Pairs, Unit, Shape>, clusters, SlotsTiles<Shape>(view),
                          kSpreadThreads, bytes, view, args, launch, places, stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SPREAD_VARIANTS_H_
