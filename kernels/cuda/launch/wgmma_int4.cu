#include "kernels/cuda/launch/wgmma_int4.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaInt4BF16(const WeightView& view, const WgmmaPlan& plan,
                                const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchInt4Pairs<BF16Pairs>(view, plan, launch, stream);
}

cudaError_t LaunchWgmmaInt4(const WeightView& view, const WgmmaPlan& plan,
                            const WgmmaLaunch& launch, cudaStream_t stream) {
  const bool zero_points = view.zero_points != nullptr;
  switch (LoopOf(view, plan, launch)) {
    case WgmmaLoop::kTurns:
      return (plan.pair_outputs > 0 ? LaunchClusterTurnsInt4 : LaunchWgmmaTurnsInt4)(
          view, plan, launch, stream);
    case WgmmaLoop::kScaled: {
      const auto pairs =
          zero_points ? LaunchClusterScaledInt4Zero : LaunchClusterScaledInt4Symmetric;
      const auto blocks = zero_points ? LaunchScaledInt4Zero : LaunchScaledInt4Symmetric;
      return (plan.pair_outputs > 0 ? pairs : blocks)(view, plan, launch, stream);
    }
    case WgmmaLoop::kGeneral:
      break;
  }
  if (plan.pair_outputs > 0) {
    const auto bf16 = zero_points ? LaunchWgmmaClusterInt4BF16Zero : LaunchWgmmaClusterInt4BF16;
    const auto f16 = zero_points ? LaunchWgmmaClusterInt4F16Zero : LaunchWgmmaClusterInt4F16;
    return (launch.f16 ? f16 : bf16)(view, plan, launch, stream);
  }
  return launch.f16 ? LaunchWgmmaInt4F16(view, plan, launch, stream)
                    : LaunchWgmmaInt4BF16(view, plan, launch, stream);
}

}  // namespace nibble::cuda
