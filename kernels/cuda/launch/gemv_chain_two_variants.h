// How GemvChainTwoKernel is launched. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_TWO_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_TWO_VARIANTS_H_

#include <algorithm>

#include "kernels/cuda/device/gemv_chain_two.cuh"
#include "kernels/cuda/launch/gemv_chain_variants.h"

namespace nibble::cuda {

inline int ChainTwoPairs(const WeightView& view) {
  constexpr int kOutputs = kTwoTiles * kUnitRows;
  return (view.n + kOutputs - 1) / kOutputs;
}
// Of a row of x: a block has all of it.
inline int ChainTwoXRowBytes(const WeightView& view) {
  return static_cast<int>(ChainXRowBytes<ChainShape<kTwoUnits, kTwoSlots>>(view));
}
template <class Unit>
int ChainTwoBytes(const WeightView& view, const GemvArgs& args) {
  return Unit::kTableBytes + kTwoSlotBytes<Unit> + args.m * ChainTwoXRowBytes(view);
}

// Whether the kernel can take the launch, and is faster than GemvChainKernel. It saves a tenth of a
// tile's time, and loses that where a multiprocessor has more tiles to do by twos than one by one.
template <class Unit>
bool ChainTwoFits(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch) {
  if (launch.chains > 1 || view.units > kTwoMostUnits) return false;
  if (ChainTwoBytes<Unit>(view, args) > kBlockSharedBytes) return false;
  const auto most = [&](int all) {
    return (all + launch.multiprocessors - 1) / launch.multiprocessors;
  };
  const int tiles = Tiles16(view);
  return 16 * kTwoTiles * most(ChainTwoPairs(view)) <= 17 * most(tiles);
}

template <class Pairs, class Unit>
cudaError_t LaunchChainTwo(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                           cudaStream_t stream) {
  ChainArgs places;
  places.x_at = Unit::kTableBytes + kTwoSlotBytes<Unit>;
  places.x_row_bytes = ChainTwoXRowBytes(view);
  const auto kernel = GemvChainTwoKernel<Pairs, Unit>;
  const cudaError_t error = AllowAllShared(kernel);
  if (error != cudaSuccess) return error;
  const int blocks = std::min(ChainTwoPairs(view), launch.multiprocessors);
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kTwoThreads),
                         static_cast<size_t>(ChainTwoBytes<Unit>(view, args)), stream, view, args,
                         places);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_CHAIN_TWO_VARIANTS_H_
