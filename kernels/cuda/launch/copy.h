// Launcher of the copying kernel.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_COPY_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_COPY_H_

#include <cstdint>

#include <cuda_runtime.h>

namespace nibble::cuda {

// Both in device memory or in mapped host memory.
cudaError_t LaunchCopy(const void* from, int64_t bytes, void* to, cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_COPY_H_
