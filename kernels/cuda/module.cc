// The module's entry: opens the GPUs that can run its kernels.
#include <cstdint>
#include <string>
#include <utility>

#include <cuda_runtime.h>

#include "fmt/format.h"
#include "kernels/core/cuda_module_abi.h"
#include "kernels/cuda/device.h"

namespace nibble::cuda {
namespace {

// BF16 in the tensor cores, and asynchronous copies.
constexpr int kMinComputeCapability = 80;

StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    // Also what a machine without a driver answers.
    return absl::FailedPreconditionError(
        fmt::format("CUDA backend: no driver or GPU: {}", cudaGetErrorString(error)));
  }
  std::vector<std::unique_ptr<Device>> devices;
  std::string unusable;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) {
      cudaGetLastError();
      unusable += fmt::format(" cuda:{} (no answer)", ordinal);
      continue;
    }
    if (properties.major * 10 + properties.minor < kMinComputeCapability) {
      unusable += fmt::format(" cuda:{} ({}, {}.{})", ordinal, properties.name, properties.major,
                              properties.minor);
      continue;
    }
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CudaDevice::Create(ordinal));
    devices.push_back(std::move(device));
  }
  if (devices.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("CUDA backend: expected a GPU of compute capability 8.0 or above; found{}",
                    unusable.empty() ? " none" : unusable));
  }
  return devices;
}

}  // namespace
}  // namespace nibble::cuda

extern "C" __attribute__((visibility("default"))) const nibble::core::CudaModule*
nibble_cuda_module_v1() {
  static constexpr nibble::core::CudaModule kModule = {
      nibble::core::kCudaModuleAbi, nibble::core::CudaModuleLayout(), nibble::cuda::OpenDevices};
  return &kModule;
}
