#include "kernels/cuda/launch/wgmma_ordered_variants.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaOrderedInt4F16(const WeightView& view, const WgmmaPlan& plan,
                                      const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchOrderedInt4<F16Pairs>(view, plan, launch, stream);
}

cudaError_t LaunchWgmmaOrderedTableF16(const WeightView& view, const WgmmaPlan& plan,
                                       const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchOrderedTable<F16Pairs>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
