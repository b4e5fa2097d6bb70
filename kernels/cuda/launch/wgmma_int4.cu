#include "kernels/cuda/launch/wgmma_int4.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaInt4BF16(const WeightView& view, const WgmmaPlan& plan,
                                const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchInt4Pairs<BF16Pairs>(view, plan, launch, stream);
}

cudaError_t LaunchWgmmaInt4(const WeightView& view, const WgmmaPlan& plan,
                            const WgmmaLaunch& launch, cudaStream_t stream) {
  return launch.f16 ? LaunchWgmmaInt4F16(view, plan, launch, stream)
                    : LaunchWgmmaInt4BF16(view, plan, launch, stream);
}

}  // namespace nibble::cuda
