#include "kernels/cuda/launch/wgmma_scaled_variants.h"

namespace nibble::cuda {

cudaError_t LaunchScaledTable(const WeightView& view, const WgmmaPlan& plan,
                              const WgmmaLaunch& launch, cudaStream_t stream) {
  return launch.scales_per_unit == 1
             ? LaunchScaledUnit<RingTableUnit<BF16Pairs, 1, 256>, TableFactors>(view, plan, launch,
                                                                                stream)
             : LaunchScaledUnit<RingTableUnit<BF16Pairs, 2, 256>, TableFactors>(view, plan, launch,
                                                                                stream);
}

}  // namespace nibble::cuda
