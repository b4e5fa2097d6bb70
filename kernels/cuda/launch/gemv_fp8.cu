#include "kernels/cuda/launch/gemv_ring_variants.h"
#include "kernels/cuda/launch/gemv_variants.h"

namespace nibble::cuda {
namespace {

template <class Pairs>
cudaError_t Launch(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                   cudaStream_t stream) {
  // One scale a row, or one in all: both multiply finished sums.
  const bool scale_a_row =
      view.groups == 1 && (view.rows_per_scale == 1 || view.rows_per_scale >= view.n);
  if (launch.ring && scale_a_row) {
    return LaunchRingUnits<Pairs, RingFp8Unit<Pairs>>(view, args, launch, stream);
  }
  return LaunchGemvUnits<Pairs, Fp8Unit<Pairs>, 1>(view, args, launch, stream);
}

}  // namespace

cudaError_t LaunchGemvFp8(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                          cudaStream_t stream) {
  return launch.f16 ? Launch<F16Pairs>(view, args, launch, stream)
                    : Launch<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
