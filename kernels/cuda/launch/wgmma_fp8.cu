#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaFp8(const WeightView& view, const WgmmaPlan& plan,
                           const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchWgmmaUnits<BF16Pairs, RingFp8Unit<BF16Pairs>>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
