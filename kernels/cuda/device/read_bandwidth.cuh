// Reads memory as fast as it comes.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_READ_BANDWIDTH_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_READ_BANDWIDTH_CUH_

#include <cstdint>

#include <cuda_runtime.h>

namespace nibble::cuda {

inline constexpr int kReadThreads = 512;
inline constexpr int kReadsInFlight = 8;

// `sink` is written only if the exclusive or of everything read is one value that memory filled
// with zeros does not give: the reads have a use, the write does not happen.
__global__ void __launch_bounds__(kReadThreads)
    ReadKernel(const uint4* data, int64_t count, uint32_t* sink) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kReadThreads;
  uint32_t combined = 0;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kReadThreads + threadIdx.x;
  for (; i + (kReadsInFlight - 1) * stride < count; i += kReadsInFlight * stride) {
    uint4 v[kReadsInFlight];
#pragma unroll
    for (int j = 0; j < kReadsInFlight; ++j) v[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (int j = 0; j < kReadsInFlight; ++j) combined ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += stride) {
    const uint4 v = __ldcs(data + i);
    combined ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (combined == 0x12345678u) *sink = combined;
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_READ_BANDWIDTH_CUH_
