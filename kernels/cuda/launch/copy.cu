#include "kernels/cuda/launch/copy.h"

#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {
namespace {

template <class T>
cudaError_t LaunchAs(const void* from, int64_t bytes, void* to, cudaStream_t stream) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  CopyKernel<<<GridFor(count, kCopyThreads), kCopyThreads, 0, stream>>>(static_cast<const T*>(from),
                                                                        count, static_cast<T*>(to));
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchCopy(const void* from, int64_t bytes, void* to, cudaStream_t stream) {
  const auto ends = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) |
                    static_cast<uintptr_t>(bytes);
  if (ends % sizeof(uint4) == 0) return LaunchAs<uint4>(from, bytes, to, stream);
  return LaunchAs<uint8_t>(from, bytes, to, stream);
}

}  // namespace nibble::cuda
