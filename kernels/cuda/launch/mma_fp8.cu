#include "kernels/cuda/launch/mma_variants.h"

namespace nibble::cuda {

cudaError_t LaunchMmaFp8(const WeightView& view, const MmaPlan& plan, const MmaLaunch& launch,
                         cudaStream_t stream) {
  return launch.f16 ? LaunchMmaUnits<F16Pairs, MmaFp8Unit<F16Pairs>>(view, plan, launch, stream)
                    : LaunchMmaUnits<BF16Pairs, MmaFp8Unit<BF16Pairs>>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
