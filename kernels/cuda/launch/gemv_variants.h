// Which variant of GemvKernel runs, the same for every format. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_VARIANTS_H_

#include <algorithm>

#include "kernels/cuda/device/gemv.cuh"
#include "kernels/cuda/launch/gemv.h"

namespace nibble::cuda {

template <int kTiles, int kShared>
cudaError_t LaunchGemvKernel(void (*kernel)(WeightView, GemvArgs), const WeightView& view,
                             const GemvArgs& args, int multiprocessors, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (error != cudaSuccess) return error;
  const int64_t tiles = (int64_t{view.n} + kTiles * kUnitRows - 1) / (kTiles * kUnitRows);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessors));
  kernel<<<blocks, kGemvWarps * 32, kShared, stream>>>(view, args);
  return cudaGetLastError();
}

// kColumns: groups of 8 rows of x. kTiles: what fits the registers beside them.
template <class Pairs, class Unit, int kColumns, int kTiles>
cudaError_t LaunchGemvColumns(const WeightView& view, const GemvArgs& args,
                              const GemvLaunch& launch, cudaStream_t stream) {
  constexpr int kDepth = 2;  // units that a warp holds
  constexpr bool kMayHold = kColumns == 1;
  const bool held = kMayHold && view.units <= kDepth * kGemvWarps;
  return LaunchGemvKernel<kTiles, GemvSharedBytes<Unit, kColumns, kTiles>()>(
      held ? GemvKernel<Pairs, Unit, kColumns, kTiles, kDepth, kMayHold>
           : GemvKernel<Pairs, Unit, kColumns, kTiles, kDepth, false>,
      view, args, launch.multiprocessors, stream);
}

template <class Pairs, class Unit, int kTiles>
cudaError_t LaunchGemvUnits(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                            cudaStream_t stream) {
  return args.m > 8 ? LaunchGemvColumns<Pairs, Unit, 2, 1>(view, args, launch, stream)
                    : LaunchGemvColumns<Pairs, Unit, 1, kTiles>(view, args, launch, stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_VARIANTS_H_
