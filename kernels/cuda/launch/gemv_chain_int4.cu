#include "kernels/cuda/launch/gemv_chain_int4.h"

namespace nibble::cuda {

cudaError_t LaunchGemvChainInt4(const WeightView& view, const GemvArgs& args,
                                const GemvLaunch& launch, cudaStream_t stream) {
  return launch.f16 ? LaunchGemvChainInt4F16(view, args, launch, stream)
                    : LaunchChainInt4<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
