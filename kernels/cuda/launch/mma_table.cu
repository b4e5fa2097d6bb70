#include "kernels/cuda/launch/mma_variants.h"

namespace nibble::cuda {

cudaError_t LaunchMmaTable(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                           cudaStream_t stream) {
  return launch.f16
             ? LaunchMmaUnits<F16Pairs, MmaTableUnit<F16Pairs>>(view, plan, launch, stream)
             : LaunchMmaUnits<BF16Pairs, MmaTableUnit<BF16Pairs>>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
