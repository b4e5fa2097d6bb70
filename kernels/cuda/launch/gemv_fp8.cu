#include "kernels/cuda/launch/gemv_variants.h"

namespace nibble::cuda {

cudaError_t LaunchGemvFp8(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                          cudaStream_t stream) {
  return launch.f16 ? LaunchGemvUnits<F16Pairs, Fp8Unit<F16Pairs>, 1>(view, args, launch, stream)
                    : LaunchGemvUnits<BF16Pairs, Fp8Unit<BF16Pairs>, 1>(view, args, launch, stream);
}

}  // namespace nibble::cuda
