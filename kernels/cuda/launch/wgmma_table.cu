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
  if (plan.ordered) {
    return launch.f16 ? LaunchWgmmaOrderedTableF16(view, plan, launch, stream)
                      : LaunchWgmmaOrderedTableBF16(view, plan, launch, stream);
  }
  if (plan.columns == kWideColumns) return LaunchWgmmaWideTable(view, plan, launch, stream);
  if (plan.pair_outputs > 0) return LaunchWgmmaClusterTable(view, plan, launch, stream);
  return launch.f16 ? Launch<F16Pairs>(view, plan, launch, stream)
                    : Launch<BF16Pairs>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
