#include "kernels/cuda/launch/mma_variants.h"

namespace nibble::cuda {
namespace {

template <class Pairs>
cudaError_t Launch(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                   cudaStream_t stream) {
  return launch.scales_per_unit == 4
             ? LaunchMmaUnits<Pairs, MmaInt4Unit<Pairs, 2>>(view, plan, launch, stream)
             : LaunchMmaUnits<Pairs, MmaInt4Unit<Pairs, 1>>(view, plan, launch, stream);
}

}  // namespace

cudaError_t LaunchMmaInt4(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                          cudaStream_t stream) {
  return launch.f16 ? Launch<F16Pairs>(view, plan, launch, stream)
                    : Launch<BF16Pairs>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
