// Launches with programmatic dependent launch where the device has it: the kernel may start before
// the one in front of it in the stream is done, and calls WaitForDependencies before it touches
// anything that one wrote or still reads.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_DEPENDENT_LAUNCH_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_DEPENDENT_LAUNCH_H_

#include <cstddef>

#include <cuda_runtime.h>

namespace nibble::cuda {

template <class... Params, class... Args>
cudaError_t LaunchDependent(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                            cudaStream_t stream, const Args&... args) {
  constexpr int kFirstMajor = 9;
  int device = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = major >= kFirstMajor ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_DEPENDENT_LAUNCH_H_
