// The device's side of programmatic dependent launch, nothing where there is none, and what lets
// the launches that it overlaps go first.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_

#include <cstdint>

namespace nibble::cuda {

// Lets the kernel that follows in the stream start, once every block has come here or ended.
__device__ inline void LaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernels before this one in the stream are done and their writes visible.
__device__ inline void WaitForDependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline uint32_t Clock() {
  uint32_t cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
  return cycles;
}
// Lets so many cycles of the multiprocessor pass.
__device__ inline void SpinFor(uint32_t cycles) {
  if (cycles == 0) return;
  const uint32_t start = Clock();
  while (Clock() - start < cycles) {
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_
