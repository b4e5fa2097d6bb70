#include "kernels/cuda/launch/gemv_chain_int4.h"

namespace nibble::cuda {

cudaError_t LaunchGemvChainInt4F16(const WeightView& view, const GemvArgs& args,
                                   const GemvLaunch& launch, cudaStream_t stream) {
  return LaunchChainInt4<F16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
