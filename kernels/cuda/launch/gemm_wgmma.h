// Launchers of the wgmma kernels, one file a format, and how they divide the work.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_WGMMA_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_WGMMA_H_

#include <cstdint>

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// Rows of x of a tile of the wide kernel, which alone has so many.
inline constexpr int kWideColumns = 256;

// What a plan depends on beside sizes.
struct WgmmaOperands {
  bool f16 = false;        // x is F16, else BF16
  bool fp8 = false;        // the weight is FP8
  bool table = false;      // it is NF4 or FP4
  bool one_scale = false;  // it is INT4 with one scale a unit
};

// How the wgmma kernels divide y [m, N] and K over the blocks.
struct WgmmaPlan {
  int columns = 0;  // rows of x a block takes at a time: 16, 32, 64, 128, or 256 (the wide kernel)
  int groups = 0;   // warpgroups of 64 outputs each
  int64_t column_tiles = 0;
  int64_t tiles = 0;
  int64_t whole_tiles = 0;   // the others are shared by all blocks, or, of the wide kernel, halves
  int64_t halved_tiles = 0;  // of the wide kernel
  int blocks = 0;
  bool chains = false;   // sums are added in the order of gemv_chain.cuh
  int pair_outputs = 0;  // of a tile that a pair of blocks takes: 64, 128 or 256; 0: no pairs

  WgmmaPlan(int64_t m, int64_t n, int64_t k, const WgmmaOperands& operands, int multiprocessors);
  // In which a row's bits depend neither on m nor on the device. chains, of_half: core::Chains.
  static WgmmaPlan InChains(int64_t m, int64_t n, int chains, int of_half, int multiprocessors);
  int64_t SharedTiles() const { return columns == kWideColumns ? 0 : tiles - whole_tiles; }
  int64_t ShareBytes() const {
    return SharedTiles() > 0 ? int64_t{blocks} * 2 * groups * 64 * columns * 4 : 0;
  }

 private:
  WgmmaPlan() = default;
  // Tiles of three warpgroups, one a multiprocessor, instead of tiles of four that blocks would
  // share: whether there are so few.
  bool PlanNarrow(int64_t n, int multiprocessors);
  // Pairs of blocks instead of shared tiles where they take less; the µs of what is taken.
  double PlanPairs(int64_t n, int64_t units, const WgmmaOperands& operands, int multiprocessors);
  // Halved tiles of the wide kernel alone, where PlanWide finds too few: one a block.
  void PlanHalves(int64_t m, int64_t n);
  // Whether the wide kernel has enough tiles for the multiprocessors, which it then divides.
  bool PlanWide(int64_t m, int64_t n, int multiprocessors);
};

struct WgmmaLaunch {
  // [m, units * 128], 16-byte aligned, rows x_stride elements apart; where TakesArranged, arranged
  // by LaunchArrangeActivations and x_stride units * 128.
  const void* x = nullptr;
  int64_t x_stride = 0;
  int64_t m = 0;
  void* y = nullptr;  // [m, N]
  Element y_type = Element::kF32;
  int64_t y_stride = 0;
  float* shares = nullptr;  // ShareBytes of the plan
  int scales_per_unit = 1;  // core::ScalesPerUnit of the weight, not 0
  bool f16 = false;         // x is F16, else BF16
};

// The loops of the wgmma kernels over 4-bit weights.
enum class WgmmaLoop {
  kGeneral,  // gemm_wgmma.cuh, gemm_wgmma_cluster.cuh: sums of a scale's inputs are scaled
  kTurns,    // gemm_wgmma_turns.cuh, gemm_wgmma_cluster_turns.cuh: the same, units unrolled
  kScaled,   // gemm_wgmma_scaled.cuh, gemm_wgmma_cluster_scaled.cuh: weights are scaled
};
WgmmaLoop LoopOf(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch);
// Whether the kernel takes x in the order of the codes.
bool TakesArranged(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch);

// y = x W^T + bias. Only for compute capability 9.0.
cudaError_t LaunchWgmmaInt4(const WeightView& view, const WgmmaPlan& plan,
                            const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchWgmmaTable(const WeightView& view, const WgmmaPlan& plan,
                             const WgmmaLaunch& launch, cudaStream_t stream);
// Of these two: by other loops, by pairs of blocks, for x of one type, with zero points and
// without.
cudaError_t LaunchWgmmaTurnsInt4(const WeightView& view, const WgmmaPlan& plan,
                                 const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchWgmmaTurnsTable(const WeightView& view, const WgmmaPlan& plan,
                                  const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchScaledInt4Symmetric(const WeightView& view, const WgmmaPlan& plan,
                                      const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchScaledInt4Zero(const WeightView& view, const WgmmaPlan& plan,
                                 const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchScaledTable(const WeightView& view, const WgmmaPlan& plan,
                              const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterScaledInt4Symmetric(const WeightView& view, const WgmmaPlan& plan,
                                             const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterScaledInt4Zero(const WeightView& view, const WgmmaPlan& plan,
                                        const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterScaledTable(const WeightView& view, const WgmmaPlan& plan,
                                     const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchWgmmaClusterInt4BF16(const WeightView& view, const WgmmaPlan& plan,
                                       const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchWgmmaClusterInt4BF16Zero(const WeightView& view, const WgmmaPlan& plan,
                                           const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchWgmmaClusterInt4F16(const WeightView& view, const WgmmaPlan& plan,
                                      const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchWgmmaClusterInt4F16Zero(const WeightView& view, const WgmmaPlan& plan,
                                          const WgmmaLaunch& launch, cudaStream_t stream);
// Pairs in turns, with x in its ring in the order of words or of half words, or as it lies.
cudaError_t LaunchClusterTurnsInt4(const WeightView& view, const WgmmaPlan& plan,
                                   const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterWordTurnsInt4Symmetric(const WeightView& view, const WgmmaPlan& plan,
                                                const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterWordTurnsInt4Zero(const WeightView& view, const WgmmaPlan& plan,
                                           const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterHalfWordTurnsInt4Symmetric(const WeightView& view, const WgmmaPlan& plan,
                                                    const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterHalfWordTurnsInt4Zero(const WeightView& view, const WgmmaPlan& plan,
                                               const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterQuadTurnsInt4Symmetric(const WeightView& view, const WgmmaPlan& plan,
                                                const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchClusterQuadTurnsInt4Zero(const WeightView& view, const WgmmaPlan& plan,
                                           const WgmmaLaunch& launch, cudaStream_t stream);
cudaError_t LaunchWgmmaClusterTable(const WeightView& view, const WgmmaPlan& plan,
                                    const WgmmaLaunch& launch, cudaStream_t stream);
// One scale a row, or one in all.
cudaError_t LaunchWgmmaFp8(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch,
                           cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMM_WGMMA_H_
