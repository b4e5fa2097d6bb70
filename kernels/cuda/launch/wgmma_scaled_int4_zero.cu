#include "kernels/cuda/launch/wgmma_scaled_variants.h"

namespace nibble::cuda {

cudaError_t LaunchScaledInt4Zero(const WeightView& view, const WgmmaPlan& plan,
                                 const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchScaledInt4<true>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
