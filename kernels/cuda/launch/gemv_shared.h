// Shared memory of the GEMV's blocks on compute capability 9.0.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SHARED_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SHARED_H_

namespace nibble::cuda {

// Dynamic shared memory of a block: what a multiprocessor lends one, less the barriers.
inline constexpr int kBlockSharedBytes = 227 * 1024 - 512;

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SHARED_H_
