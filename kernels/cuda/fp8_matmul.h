// FP8 weights with quantized activations on the tensor cores of compute capability 9.0.
//
//   cuda_fp8_gemm    codes of both sides by our own kernel: any scales that fit 128 inputs
//   cuda_fp8_cublas  by cuBLASLt, where its scales fit: of rows and outputs, or of blocks
//
// 16- and 32-bit activations are quantized first.
#ifndef NIBBLE_KERNELS_CUDA_FP8_MATMUL_H_
#define NIBBLE_KERNELS_CUDA_FP8_MATMUL_H_

#include "kernels/cuda/blas.h"
#include "kernels/cuda/packed_weight.h"
#include "nibble/ops.h"
#include "nibble/selector.h"

namespace nibble::cuda {

bool IsFp8Kernel(const Choice& choice);

uint64_t Fp8MatmulWorkspaceBytes(const Problem& problem, const Choice& choice,
                                 const DeviceInfo& device);

// As RunMatmul.
Status RunFp8Matmul(const MatmulArgs& args, const CudaWeight& weight, const Choice& choice,
                    void* workspace, const DeviceInfo& device, Context& context, Blas& blas,
                    cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_FP8_MATMUL_H_
