// Launcher of the reading kernel.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_READ_BANDWIDTH_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_READ_BANDWIDTH_H_

#include <cstdint>

#include <cuda_runtime.h>

namespace nibble::cuda {

// What LaunchRead reads is a multiple of this.
inline constexpr int64_t kReadUnitBytes = int64_t{64} << 10;

// Reads `bytes` of device memory that was set to 0; `sink` is 4 bytes.
cudaError_t LaunchRead(const void* data, int64_t bytes, void* sink, cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_READ_BANDWIDTH_H_
