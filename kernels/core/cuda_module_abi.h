// What the CUDA module exports: one C symbol that leads to this table.
#ifndef NIBBLE_KERNELS_CORE_CUDA_MODULE_ABI_H_
#define NIBBLE_KERNELS_CORE_CUDA_MODULE_ABI_H_

#include <memory>
#include <vector>

#include "nibble/backend.h"
#include "nibble/status.h"

namespace nibble::core {

// C++ objects cross the border, so both sides must come from one version built by one compiler with
// the same layouts.
inline constexpr char kCudaModuleAbi[] = "nibble " NIBBLE_VERSION ", " __VERSION__;

struct CudaModule {
  const char* abi;
  uint64_t layout;  // CudaModuleLayout() of the module
  StatusOr<std::vector<std::unique_ptr<Device>>> (*open_devices)();
};

// Sizes of the types that cross the border, combined: 16-bit digits.
constexpr uint64_t CudaModuleLayout() {
  return (uint64_t{sizeof(CanonicalWeight)} << 48) | (uint64_t{sizeof(WeightSpec)} << 32) |
         (uint64_t{sizeof(MatmulArgs)} << 16) |
         uint64_t{sizeof(NormQuantArgs) + sizeof(DeviceInfo)};
}

inline constexpr char kCudaModuleSymbol[] = "nibble_cuda_module_v1";
using CudaModuleEntry = const CudaModule* (*)();

}  // namespace nibble::core

#endif  // NIBBLE_KERNELS_CORE_CUDA_MODULE_ABI_H_
