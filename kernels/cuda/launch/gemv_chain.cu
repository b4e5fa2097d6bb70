#include "kernels/cuda/launch/gemv_chain_two_variants.h"
#include "kernels/cuda/launch/gemv_chain_variants.h"
#include "kernels/cuda/launch/gemv_stream_variants.h"

namespace nibble::cuda {
namespace {

template <class Pairs, int kScales>
cudaError_t LaunchTableScales(const WeightView& view, const GemvArgs& args,
                              const GemvLaunch& launch, cudaStream_t stream) {
  // A lookup takes two instructions less in the table of pitch 256.
  using Unit = RingTableUnit<Pairs, kScales, 256>;
  if (launch.of_half > 0) {
    return LaunchStream<Pairs, HalfWordTableUnit<Unit>>(view, args, launch, stream);
  }
  if (ChainTwoFits<Unit>(view, args, launch)) {
    return LaunchChainTwo<Pairs, Unit>(view, args, launch, stream);
  }
  if (ChainFits<Unit, ChainShape<2, 2>>(view, args)) {
    return LaunchChain<Pairs, Unit, ChainShape<2, 2>>(view, args, launch, stream);
  }
  return LaunchChainOf<Pairs, RingTableUnit<Pairs, kScales, 128>, ChainShape<1, 3>>(view, args,
                                                                                    launch, stream);
}

template <class Pairs>
cudaError_t LaunchTable(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                        cudaStream_t stream) {
  switch (launch.scales_per_unit) {
    case 1:
      return LaunchTableScales<Pairs, 1>(view, args, launch, stream);
    case 2:
      return LaunchTableScales<Pairs, 2>(view, args, launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchGemvChainTable(const WeightView& view, const GemvArgs& args,
                                 const GemvLaunch& launch, cudaStream_t stream) {
  return launch.f16 ? LaunchTable<F16Pairs>(view, args, launch, stream)
                    : LaunchTable<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
