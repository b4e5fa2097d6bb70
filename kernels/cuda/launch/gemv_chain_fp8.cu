#include "kernels/cuda/launch/gemv_chain_variants.h"

namespace nibble::cuda {
namespace {

// With as many slots as fit beside x.
template <class Pairs, int kColumns, int kBlocks>
cudaError_t LaunchDeepest(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                          cudaStream_t stream) {
  return LaunchChainOf<Pairs, RingFp8Unit<Pairs>, ChainShape<1, 4, kColumns, kBlocks>,
                       ChainShape<1, 3, kColumns, kBlocks>, ChainShape<1, 2, kColumns, kBlocks>>(
      view, args, launch, stream);
}

template <class Pairs>
cudaError_t LaunchFp8(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                      cudaStream_t stream) {
  if (args.m > 8) return LaunchDeepest<Pairs, 2, 1>(view, args, launch, stream);
  // Halves lose where x fits one block (H200, 4096x4096, 8 rows: 8.2 us against 7.5).
  return ChainFits<RingFp8Unit<Pairs>, ChainShape<1, 2>>(view, args)
             ? LaunchDeepest<Pairs, 1, 1>(view, args, launch, stream)
             : LaunchDeepest<Pairs, 1, 2>(view, args, launch, stream);
}

}  // namespace

cudaError_t LaunchGemvChainFp8(const WeightView& view, const GemvArgs& args,
                               const GemvLaunch& launch, cudaStream_t stream) {
  return launch.f16 ? LaunchFp8<F16Pairs>(view, args, launch, stream)
                    : LaunchFp8<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
