// How GemvOnceKernel is launched. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_ONCE_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_ONCE_VARIANTS_H_

#include "kernels/cuda/device/gemv_once.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemv.h"
#include "kernels/cuda/launch/gemv_shared.h"

namespace nibble::cuda {

// Whether GemvOnceKernel takes an INT4 weight.
inline bool OnceFits(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch) {
  return launch.of_half == kOnceOfHalf && args.m <= kOnceRows &&
         view.units <= kOnceChains * kOnceUnits &&
         Tiles16(view) <= kOnceTiles * launch.multiprocessors;
}

template <class Pairs, class Unit>
cudaError_t LaunchOnce(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                       cudaStream_t stream) {
  // Of a block, where two share a multiprocessor: half of its 228 KB, less what each has beside.
  constexpr int kBytesOfTwo = 113 * 1024;
  static_assert(OnceX<Unit>::kAt + kOnceRows * kOnceXRowBytes <= kBytesOfTwo);
  const auto kernel = GemvOnceKernel<Pairs, Unit>;
  const cudaError_t error = AllowAllShared(kernel);
  if (error != cudaSuccess) return error;
  return LaunchDependent(
      kernel, dim3(static_cast<unsigned>(launch.multiprocessors)), dim3(kSlotsThreads),
      static_cast<size_t>(OnceX<Unit>::kAt + args.m * kOnceXRowBytes), stream, view, args);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_ONCE_VARIANTS_H_
