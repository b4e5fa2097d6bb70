// Which variant of GemvKernel runs, the same for every format. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_VARIANTS_H_

#include <algorithm>

#include "kernels/cuda/device/gemv.cuh"
#include "kernels/cuda/launch/gemv.h"

namespace nibble::cuda {

template <class Pairs, class Unit, int kColumns, int kTiles, int kDepth, bool kHeld>
cudaError_t LaunchGemvVariant(const WeightView& view, const GemvArgs& args, int multiprocessors,
                              cudaStream_t stream) {
  constexpr int kShared = GemvSharedBytes<Unit, kColumns, kTiles>();
  const auto kernel = GemvKernel<Pairs, Unit, kColumns, kTiles, kDepth, kHeld>;
  if constexpr (kShared > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
  }
  const int64_t tiles = (int64_t{view.n} + kTiles * kUnitRows - 1) / (kTiles * kUnitRows);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessors));
  kernel<<<blocks, kGemvWarps * 32, kShared, stream>>>(view, args);
  return cudaGetLastError();
}

// kTiles, kDepth: what fits the registers beside one group of 8 rows of x.
template <class Pairs, class Unit, int kTiles, int kDepth>
cudaError_t LaunchGemvUnits(const WeightView& view, const GemvArgs& args, int multiprocessors,
                            cudaStream_t stream) {
  if (args.m > 8) {
    return LaunchGemvVariant<Pairs, Unit, 2, 1, 2, false>(view, args, multiprocessors, stream);
  }
  if (view.units <= kDepth * kGemvWarps) {
    return LaunchGemvVariant<Pairs, Unit, 1, kTiles, kDepth, true>(view, args, multiprocessors,
                                                                   stream);
  }
  return LaunchGemvVariant<Pairs, Unit, 1, kTiles, kDepth, false>(view, args, multiprocessors,
                                                                  stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_VARIANTS_H_
