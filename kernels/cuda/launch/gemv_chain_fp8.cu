#include "kernels/cuda/launch/gemv_chain_variants.h"

namespace nibble::cuda {
namespace {

// That of the fewest slots, of kBlocks blocks: what x has to fit beside.
template <int kBlocks>
using LeastShape = ChainShape<1, 2, ChainX::kSwizzled, 1, kBlocks>;
template <int kBlocks>
bool Fits(const WeightView& view, const GemvArgs& args) {
  return ChainFits<RingFp8Unit<BF16Pairs>, LeastShape<kBlocks>>(view, args);
}

// With as many slots as fit beside x.
template <class Pairs, ChainX kX, int kColumns, int kBlocks>
cudaError_t LaunchDeepest(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                          cudaStream_t stream) {
  return LaunchChainOf<Pairs, RingFp8Unit<Pairs>, ChainShape<1, 4, kX, kColumns, kBlocks>,
                       ChainShape<1, 3, kX, kColumns, kBlocks>,
                       ChainShape<1, 2, kX, kColumns, kBlocks>>(view, args, launch, stream);
}

template <class Pairs>
cudaError_t LaunchFp8(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                      cudaStream_t stream) {
  constexpr ChainX kSwizzled = ChainX::kSwizzled;
  if (args.m > 8) return LaunchDeepest<Pairs, kSwizzled, 2, 1>(view, args, launch, stream);
  // Halves lose where x fits one block (H200, 4096x4096, 8 rows: 8.2 us against 7.5).
  if (!Fits<1>(view, args)) {
    return LaunchDeepest<Pairs, kSwizzled, 1, 2>(view, args, launch, stream);
  }
  // 4096x14336, 4 rows: 16.2 in bulk, 16.9 by threads; 4096x4096, 8 rows: 7.5 and 6.8.
  return args.m > 4 ? LaunchDeepest<Pairs, kSwizzled, 1, 1>(view, args, launch, stream)
                    : LaunchDeepest<Pairs, ChainX::kAlike, 1, 1>(view, args, launch, stream);
}

}  // namespace

bool GemvChainFp8RunsAtOnce(const WeightView& view, const GemvArgs& args,
                            const GemvLaunch& launch) {
  if (Fits<1>(view, args)) {
    return ChainBlocks<LeastShape<1>>(view, launch) <= launch.multiprocessors;
  }
  return args.m <= 8 && launch.chains % 2 == 0 && Fits<2>(view, args) &&
         ChainBlocks<LeastShape<2>>(view, launch) <= launch.multiprocessors;
}

cudaError_t LaunchGemvChainFp8(const WeightView& view, const GemvArgs& args,
                               const GemvLaunch& launch, cudaStream_t stream) {
  return launch.f16 ? LaunchFp8<F16Pairs>(view, args, launch, stream)
                    : LaunchFp8<BF16Pairs>(view, args, launch, stream);
}

}  // namespace nibble::cuda
