// Launches with programmatic dependent launch where the device has it: the kernel may start before
// the one in front of it in the stream is done, and calls WaitForDependencies before it touches
// anything that one wrote or still reads.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_DEPENDENT_LAUNCH_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_DEPENDENT_LAUNCH_H_

#include <cstddef>

#include <cuda_runtime.h>

namespace nibble::cuda {

// In clusters of `cluster` blocks along x.
template <class... Params, class... Args>
cudaError_t LaunchDependentClusters(int cluster, void (*kernel)(Params...), dim3 grid, dim3 block,
                                    size_t shared_bytes, cudaStream_t stream, const Args&... args) {
  constexpr int kFirstMajor = 9;
  int device = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = major < kFirstMajor ? 0 : cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

template <class... Params, class... Args>
cudaError_t LaunchDependent(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                            cudaStream_t stream, const Args&... args) {
  return LaunchDependentClusters(1, kernel, grid, block, shared_bytes, stream, args...);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_DEPENDENT_LAUNCH_H_
