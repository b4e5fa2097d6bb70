#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaInt4(const WeightView& view, const WgmmaPlan& plan,
                            const WgmmaLaunch& launch, cudaStream_t stream) {
  if (view.zero_points != nullptr) return LaunchWgmmaUnits<BF16Pairs, RingInt4Unit<BF16Pairs, 1, true, true>>(view, plan, launch, stream);
  return LaunchWgmmaUnits<BF16Pairs, RingInt4Unit<BF16Pairs, 1, false, true>>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
