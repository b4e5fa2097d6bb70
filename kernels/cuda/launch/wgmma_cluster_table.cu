#include "kernels/cuda/launch/wgmma_cluster_variants.h"

namespace nibble::cuda {
namespace {

template <class Pairs>
cudaError_t Launch(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                   cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchClusterUnits<Pairs, QuadTableUnit<Pairs, 1>>(view, plan, launch, stream);
    case 2:
      return LaunchClusterUnits<Pairs, QuadTableUnit<Pairs, 2>>(view, plan, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchWgmmaClusterTable(const WeightView& view, const WgmmaPlan& plan,
                                    const WgmmaLaunch& launch, cudaStream_t stream) {
  return launch.f16 ? Launch<F16Pairs>(view, plan, launch, stream)
                    : Launch<BF16Pairs>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
