#include "kernels/cuda/launch/gemv_int4.h"

namespace nibble::cuda {

cudaError_t LaunchGemvInt4(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                           cudaStream_t stream) {
  return launch.f16 ? LaunchGemvInt4F16(view, args, launch, stream)
                    : LaunchGemvInt4Of<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
