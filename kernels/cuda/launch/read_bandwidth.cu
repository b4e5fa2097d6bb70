#include "kernels/cuda/launch/read_bandwidth.h"

#include "kernels/cuda/device/read_bandwidth.cuh"

namespace nibble::cuda {

cudaError_t LaunchRead(const void* data, int64_t bytes, void* sink, int multiprocessors,
                       cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(multiprocessors * 4);
  ReadKernel<<<blocks, kReadThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16,
                                                  static_cast<uint32_t*>(sink));
  return cudaGetLastError();
}

}  // namespace nibble::cuda
