// Launchers of the GEMV kernels, one file a format.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_H_

#include "kernels/cuda/device/args.cuh"

namespace nibble::cuda {

// Rows of x that one launch takes.
inline constexpr int kGemvRows = 16;

struct GemvLaunch {
  int scales_per_unit = 1;  // core::ScalesPerUnit of the weight, not 0
  bool f16 = false;         // x is F16, else BF16
  bool ring = false;        // core::StreamsWeights of the device
  int multiprocessors = 1;
  // core::Chains of weights that core::HasChainKernels; of others as here.
  int chains = 1;
  int of_half = 0;
};

// y [m, N] = x [m, K] W^T + bias, m <= kGemvRows.
cudaError_t LaunchGemvInt4(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                           cudaStream_t stream);
cudaError_t LaunchGemvTable(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                            cudaStream_t stream);
cudaError_t LaunchGemvFp8(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                          cudaStream_t stream);

// The same of the rows that CudaKernelFits takes, with the bits of LaunchWgmmaInt4 and the
// others by WgmmaPlan::InChains. Of FP8, one scale a row or one in all. Only for compute capability
// 9.0.
cudaError_t LaunchGemvChainInt4(const WeightView& view, const GemvArgs& args,
                                const GemvLaunch& launch, cudaStream_t stream);
cudaError_t LaunchGemvChainTable(const WeightView& view, const GemvArgs& args,
                                 const GemvLaunch& launch, cudaStream_t stream);
cudaError_t LaunchGemvChainFp8(const WeightView& view, const GemvArgs& args,
                               const GemvLaunch& launch, cudaStream_t stream);

// Whether x fits LaunchGemvChainFp8, and every block has a multiprocessor. Blocks with half of x
// are clusters of two, which the device must run, as it must for pairs of wgmma.
bool GemvChainFp8RunsAtOnce(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_H_
