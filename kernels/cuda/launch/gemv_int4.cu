#include "kernels/cuda/launch/gemv_variants.h"

namespace nibble::cuda {
namespace {

template <class Pairs>
cudaError_t Launch(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                   cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchGemvUnits<Pairs, Int4Unit<Pairs, 1>, 2>(view, args, launch, stream);
    case 2:
      return LaunchGemvUnits<Pairs, Int4Unit<Pairs, 2>, 2>(view, args, launch, stream);
    case 4:
      return LaunchGemvUnits<Pairs, Int4Unit<Pairs, 4>, 1>(view, args, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchGemvInt4(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                           cudaStream_t stream) {
  return launch.f16 ? Launch<F16Pairs>(view, args, launch, stream)
                    : Launch<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
