// Shared memory and tiles of the GEMV's blocks on compute capability 9.0.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SHARED_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SHARED_H_

#include <cuda_runtime.h>

#include "kernels/cuda/device/args.cuh"

namespace nibble::cuda {

// Dynamic shared memory of a block: what a multiprocessor lends one, less the barriers.
inline constexpr int kBlockSharedBytes = 227 * 1024 - 512;

// Sets a kernel's limit, and as much shared memory as there is: a multiprocessor that changed its
// share would have to run dry first.
template <class Kernel>
cudaError_t AllowAllShared(Kernel kernel) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBlockSharedBytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

template <class Shape>
int SlotsTiles(const WeightView& view) {
  return (view.n + Shape::kRows - 1) / Shape::kRows;
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SHARED_H_
