#include "kernels/cuda/launch/wgmma_scaled_variants.h"

namespace nibble::cuda {

cudaError_t LaunchScaledInt4Symmetric(const WeightView& view, const WgmmaPlan& plan,
                                      const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchScaledInt4<false>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
