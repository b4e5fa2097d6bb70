#include "kernels/cuda/launch/read_bandwidth.h"

#include "kernels/cuda/device/read_bandwidth.cuh"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {

static_assert(kReadUnitBytes == kReadBlockBytes);

cudaError_t LaunchRead(const void* data, int64_t bytes, void* sink, cudaStream_t stream) {
  if (bytes % kReadBlockBytes != 0) return cudaErrorInvalidValue;
  ReadKernel<<<GridFor(bytes, kReadBlockBytes), kReadThreads, 0, stream>>>(
      static_cast<const uint4*>(data), static_cast<uint32_t*>(sink));
  return cudaGetLastError();
}

}  // namespace nibble::cuda
