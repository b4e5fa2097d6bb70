#include "kernels/cuda/launch/wgmma_ordered_variants.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaOrderedInt4BF16(const WeightView& view, const WgmmaPlan& plan,
                                       const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchOrderedInt4<BF16Pairs>(view, plan, launch, stream);
}

cudaError_t LaunchWgmmaOrderedTableBF16(const WeightView& view, const WgmmaPlan& plan,
                                        const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchOrderedTable<BF16Pairs>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
