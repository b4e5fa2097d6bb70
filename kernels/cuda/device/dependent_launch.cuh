// The device's side of programmatic dependent launch; nothing where there is none.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_

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

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_DEPENDENT_LAUNCH_CUH_
