#include "kernels/cuda/launch/wgmma_int4.h"

namespace nibble::cuda {

cudaError_t LaunchWgmmaInt4F16(const WeightView& view, const WgmmaPlan& plan,
                               const WgmmaLaunch& launch, cudaStream_t stream) {
  return LaunchInt4Pairs<F16Pairs>(view, plan, launch, stream);
}

}  // namespace nibble::cuda
