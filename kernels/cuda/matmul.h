// A matmul on the GPU: which launches a choice stands for, and the memory between them.
//
//   cuda_gemv      16-bit x and packed weights on the tensor cores, 16 rows a launch. An act-order
//                  weight whose groups differ in size is decoded, as by cuda_gemm
//   cuda_mma       the same, 16 to 128 rows a block, without wgmma
//   cuda_wgmma     the same on Hopper's, 16 to 128 rows a block
//   cuda_gemm      weights decoded to 16 bits, then cuBLASLt. F16 activations meet BF16 weights as
//                  the exact sum of two BF16 matrices, so that no weight can overflow
//   cuda_fp8_gemm, cuda_fp8_cublas  FP8 weights and activations (fp8_matmul.h)
//   cuda_gemm_f32  binary32 throughout: any input, any weight
#ifndef NIBBLE_KERNELS_CUDA_MATMUL_H_
#define NIBBLE_KERNELS_CUDA_MATMUL_H_

#include "kernels/cuda/blas.h"
#include "kernels/cuda/packed_weight.h"
#include "nibble/ops.h"
#include "nibble/selector.h"

namespace nibble::cuda {

uint64_t MatmulWorkspaceBytes(const Problem& problem, const Choice& choice,
                              const DeviceInfo& device);

// `args` are valid, with at least one row. `workspace` holds MatmulWorkspaceBytes.
Status RunMatmul(const MatmulArgs& args, const CudaWeight& weight, const Choice& choice,
                 void* workspace, const DeviceInfo& device, Context& context, Blas& blas,
                 cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_MATMUL_H_
