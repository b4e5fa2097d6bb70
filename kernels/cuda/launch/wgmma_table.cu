#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaTable(const WeightView& view, const WgmmaPlan& plan,
                             const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchWgmmaUnits<BF16Pairs, RingTableUnit<BF16Pairs, 2, 256>>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
