// A copy by the multiprocessors: between device memory and mapped host memory it starts sooner than
// the copy engines do.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_COPY_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_COPY_CUH_

#include <cstdint>

#include <cuda_runtime.h>

namespace nibble::cuda {

inline constexpr int kCopyThreads = 128;

// to[i] = from[i], count elements, one a thread.
template <class T>
__global__ void __launch_bounds__(kCopyThreads) CopyKernel(const T* from, int64_t count, T* to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (i < count) to[i] = from[i];
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_COPY_CUH_
