#include "kernels/cuda/launch/gemv_slots_variants.h"
#include "kernels/cuda/launch/gemv_variants.h"

namespace nibble::cuda {
namespace {

template <class Pairs, int kScales>
cudaError_t LaunchScales(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                         cudaStream_t stream) {
  if (launch.ring) {
    return LaunchFourBitUnits<Pairs, RingTableUnit<Pairs, kScales, 256>,
                              RingTableUnit<Pairs, kScales, 128>>(view, args, launch, stream);
  }
  return LaunchGemvUnits<Pairs, TableUnit<Pairs, kScales>, 2>(view, args, launch, stream);
}

template <class Pairs>
cudaError_t Launch(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                   cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchScales<Pairs, 1>(view, args, launch, stream);
    case 2:
      return LaunchScales<Pairs, 2>(view, args, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchGemvTable(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                            cudaStream_t stream) {
  return launch.f16 ? Launch<F16Pairs>(view, args, launch, stream)
                    : Launch<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
