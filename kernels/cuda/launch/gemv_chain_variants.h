// How GemvChainKernel is launched. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_VARIANTS_H_

#include <algorithm>

#include "kernels/core/chain_room.h"
#include "kernels/cuda/device/gemv_chain.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemv.h"
#include "kernels/cuda/launch/gemv_shared.h"

namespace nibble::cuda {

// Bytes of a block's shared memory for a row of x: the units of the block that has more.
template <class Shape>
int64_t ChainXRowBytes(const WeightView& view) {
  constexpr int kSkew = Shape::kX == ChainX::kSkewed ? kSharedRowSkew : 0;
  return (int64_t{view.units} + Shape::kBlocks - 1) / Shape::kBlocks * kUnitXBytes + kSkew;
}
static_assert(kSharedRowSkew == core::kChainRowSkew);
// For all rows.
template <class Unit, class Shape>
constexpr int ChainRoom() {
  return kBlockSharedBytes - Shape::template XAt<Unit>();
}
template <class Unit, class Shape>
bool ChainFits(const WeightView& view, const GemvArgs& args) {
  return args.m * ChainXRowBytes<Shape>(view) <= ChainRoom<Unit, Shape>();
}

// What the selector counts on.
template <class Unit, class Shape>
constexpr int LeastChainRoom() {
  if (Unit::kBoxed) return Shape::kBlocks > 1 ? core::kChainRoomOfHalves : core::kChainRoomFp8;
  return Unit::kTableBytes > 0 ? core::kChainRoomBesideTable : core::kChainRoom;
}

// Of several chains each has as many tiles as its warps add at once; of one they go on to others.
template <class Shape>
int ChainBlocks(const WeightView& view, const GemvLaunch& launch) {
  const int tiles = Tiles16(view);
  if (launch.chains == 1) return std::min(tiles, launch.multiprocessors);
  const int block_tiles = kSlotsWarps / (launch.chains / Shape::kBlocks);
  return (tiles + block_tiles - 1) / block_tiles * Shape::kBlocks;
}

template <class Pairs, class Unit, class Shape>
cudaError_t LaunchChain(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                        cudaStream_t stream) {
  ChainArgs places;
  places.chains = launch.chains;
  places.x_at = Shape::template XAt<Unit>();
  places.x_row_bytes = static_cast<int32_t>(ChainXRowBytes<Shape>(view));
  const auto kernel = GemvChainKernel<Pairs, Unit, Shape>;
  const cudaError_t error = AllowAllShared(kernel);
  if (error != cudaSuccess) return error;
  const int blocks = ChainBlocks<Shape>(view, launch);
  return LaunchDependentClusters(
      Shape::kBlocks, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kSlotsThreads),
      static_cast<size_t>(places.x_at + args.m * places.x_row_bytes), stream, view, args, places);
}

// The first of the shapes beside which x fits, as it does beside the last one's.
template <class Pairs, class Unit, class Shape>
cudaError_t LaunchChainOf(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                          cudaStream_t stream) {
  static_assert(ChainRoom<Unit, Shape>() >= LeastChainRoom<Unit, Shape>());
  return LaunchChain<Pairs, Unit, Shape>(view, args, launch, stream);
}
template <class Pairs, class Unit, class Shape, class Next, class... Others>
cudaError_t LaunchChainOf(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                          cudaStream_t stream) {
  return ChainFits<Unit, Shape>(view, args)
             ? LaunchChain<Pairs, Unit, Shape>(view, args, launch, stream)
             : LaunchChainOf<Pairs, Unit, Next, Others...>(view, args, launch, stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_VARIANTS_H_
