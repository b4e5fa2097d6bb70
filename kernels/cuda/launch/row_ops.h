// Launchers of the fused row kernels.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_ROW_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_ROW_OPS_H_

#include "kernels/cuda/device/args.cuh"

namespace nibble::cuda {

// `type` is x's (F32, F16, BF16); args.m > 0.
cudaError_t LaunchNormQuant(const RowOpArgs& args, Element type, cudaStream_t stream);
cudaError_t LaunchSiluMulQuant(const RowOpArgs& args, Element type, cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_ROW_OPS_H_
