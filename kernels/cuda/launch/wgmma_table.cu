#include "kernels/cuda/launch/wgmma_variants.h"

namespace nibble::cuda {
namespace {

template <class Pairs>
cudaError_t Launch(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                   cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchWgmmaUnits<Pairs, RingTableUnit<Pairs, 1, 256>>(view, plan, launch, stream);
    case 2:
      return LaunchWgmmaUnits<Pairs, RingTableUnit<Pairs, 2, 256>>(view, plan, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchWgmmaTable(const WeightView& view, const WgmmaPlan& plan,
                             const WgmmaLaunch& launch, cudaStream_t stream) {
  switch (LoopOf(view, plan, launch)) {
    case WgmmaLoop::kTurns:
      return LaunchWgmmaTurnsTable(view, plan, launch, stream);
    case WgmmaLoop::kScaled:
      return plan.pair_outputs > 0 ? LaunchClusterScaledTable(view, plan, launch, stream)
                                   : LaunchScaledTable(view, plan, launch, stream);
    case WgmmaLoop::kGeneral:
      break;
  }
  if (plan.pair_outputs > 0) return LaunchWgmmaClusterTable(view, plan, launch, stream);
  return launch.f16 ? Launch<F16Pairs>(view, plan, launch, stream)
                    : Launch<BF16Pairs>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
