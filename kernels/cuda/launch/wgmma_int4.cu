#include "kernels/cuda/launch/wgmma_int4.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaInt4BF16(const WeightView& view, const WgmmaPlan& plan,
                                const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchInt4Pairs<BF16Pairs>(view, plan, launch, stream);
}

cudaError_t LaunchWgmmaInt4(const WeightView& view, const WgmmaPlan& plan,
                            const WgmmaLaunch& launch, cudaStream_t stream) {
  if (plan.ordered) {
    return launch.f16 ? LaunchWgmmaOrderedInt4F16(view, plan, launch, stream)
                      : LaunchWgmmaOrderedInt4BF16(view, plan, launch, stream);
  }
  if (plan.columns == kWideColumns) return LaunchWgmmaWideInt4(view, plan, launch, stream);
  if (plan.pair_outputs > 0) {
    const bool zero_points = view.zero_points != nullptr;
    const auto bf16 = zero_points ? LaunchWgmmaClusterInt4BF16Zero : LaunchWgmmaClusterInt4BF16;
    const auto f16 = zero_points ? LaunchWgmmaClusterInt4F16Zero : LaunchWgmmaClusterInt4F16;
    return (launch.f16 ? f16 : bf16)(view, plan, launch, stream);
  }
  return launch.f16 ? LaunchWgmmaInt4F16(view, plan, launch, stream)
                    : LaunchWgmmaInt4BF16(view, plan, launch, stream);
}

}  // namespace nibble::cuda
