#include "kernels/cuda/launch/gemv_int4.h"

namespace nibble::cuda {

cudaError_t LaunchGemvInt4F16(const WeightView& view, const GemvArgs& args,
                              const GemvLaunch& launch, cudaStream_t stream) {
  return LaunchGemvInt4Of<F16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
