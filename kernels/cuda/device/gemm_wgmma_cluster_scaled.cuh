// WgmmaClusterKernel of weights that are scaled before they are multiplied, 128 rows of BF16 x: the
// four parts of a unit in one turn, addresses and barriers kept, decoders of wgmma_units.cuh.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_SCALED_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_SCALED_CUH_

#include "kernels/cuda/device/gemm_wgmma_cluster.cuh"
#include "kernels/cuda/device/wgmma_units.cuh"

namespace nibble::cuda {

template <class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaClusterScaledKernel(const __grid_constant__ WeightView w,
                             const __grid_constant__ WgmmaArgs args,
                             const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Rings = WgmmaClusterRings<Unit, Shape>;
  constexpr int kScales = Unit::kScalesPerUnit;
  constexpr int kColumns = Shape::kColumns;
  extern __shared__ __align__(1024) uint32_t shared_words[];
  __shared__ WgmmaClusterBarriers barriers;
  static_assert(sizeof(barriers) + kClusterSharedBytes <= 227 * 1024);
  const uint32_t full = Kept(SharedAddress(barriers.full));
  const uint32_t empty = full + kClusterEmptyAt;
  const uint32_t x_full = full + kClusterXFullAt;
  const uint32_t x_empty = full + kClusterXEmptyAt;
  const uint32_t inbox_barrier = full + kClusterInboxAt;
  const uint32_t table = SharedAddress(shared_words);
  const uint32_t x_ring = (table + Unit::kTableBytes + kWgmmaAlign - 1) / kWgmmaAlign * kWgmmaAlign;
  const uint32_t ring = x_ring + Rings::kWeightsAt;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  LaunchDependents();
  if (threadIdx.x == Shape::kMultiplying) {
    PrefetchMap(maps.codes);
    PrefetchMap(maps.scales);
    PrefetchMap(maps.x);
    InitClusterBarriers<Unit, Shape>(full, empty, x_full, x_empty, inbox_barrier);
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if constexpr (!Rings::kLateInbox) ArriveCluster<false>();
  const auto work = WgmmaClusterWork::Of<Shape>(w.units);
  if (warp >= Shape::kGroups * 4) {
    ProduceInCluster<Unit, Shape>(args, maps, work, warp, lane, ring, x_ring, full, empty, x_full,
                                  x_empty);
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y

  const int tile16 = warp % Shape::kTiles;
  const int split = warp / Shape::kTiles;
  const uint32_t codes_at = Kept(ring + tile16 * Unit::kCodeBytes + lane / 4 * 64);
  const uint32_t scales_at =
      Kept(ring + Rings::kScalesAt + tile16 * Unit::kScaleBytes + lane / 4 * Unit::kRowScaleBytes);
  const uint32_t zeros_at = Kept(ring + Rings::kZerosAt + tile16 * Unit::kZeroBytes + lane / 4 * 2);
  const uint32_t x_at = OfWarp(OperandStart(x_ring));
  const bool bf16_scales = w.scale_type == Element::kBF16;
  WgmmaSlot slot;  // of weights
  WgmmaSlot x_slot;
  slot.stage = x_slot.stage = split;
  float sums[kColumns / 2] = {};
  uint32_t a[2][2][4];
  uint32_t before = 0;  // the barrier of the stage of x that may still be multiplied
#pragma unroll 1
  for (int32_t left = work.end - work.first - split; left > 0; left -= Shape::kSplits) {
    const uint32_t offset = slot.stage * Rings::kBytes;
    const uint32_t barrier = full + slot.stage * 8;
    const uint32_t x_barrier = full + x_slot.stage * 8;
    const uint32_t x_start = OfWarp(x_at + x_slot.stage * (Rings::kXBytes >> 4));
    const uint64_t x = OperandAt(x_start);
    AwaitPhase(barrier, slot.parity);
    typename Unit::Quad now;
    now.Load(codes_at + offset);
    now.LoadGroup(bf16_scales, scales_at + offset, zeros_at + offset, 0);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      uint32_t low[4];
      uint32_t high[4];
      auto& fragments = a[part % 2];
      // Done long ago: a branch between the halves, without which ptxas waits after every wgmma.
      if (part == 2) AwaitPhase(barrier, slot.parity);
      now.Decode(table, part % 2, low, high);
      ToFragments(low, high, fragments);
      if (part == 1) now.Load(codes_at + offset + 512);
      const int next_group = (part + 1) * kScales / 4;
      if (part < 3 && next_group != part * kScales / 4) {
        now.LoadGroup(bf16_scales, scales_at + offset, zeros_at + offset, next_group);
      }
      HoldRegisters(sums);
      HoldRegisters(fragments);
      if (part == 0) {
        // Others gave it back: they have waited for the phase before.
        if constexpr (Rings::kXOfAny) AwaitPhase(x_barrier + (x_empty - full), x_slot.parity ^ 1);
        AwaitPhase(x_barrier + (x_full - full), x_slot.parity);
      }
      if (part == 3) ArriveByWarp(barrier + (empty - full));
      MultiplyUnitPart<BF16Pairs, Rings::kXHalfBytes>(sums, fragments, x, part, false);
      HoldRegisters(a[(part + 1) % 2]);
      if (part == 0 && before != 0) ArriveByWarp(before);
    }
    before = x_barrier + (x_empty - full);
    slot.AdvanceBy(Shape::kSplits, Rings::kStages);
    x_slot.AdvanceBy(Shape::kSplits, Rings::kXStages);
  }
  WgmmaWait<0>();
  HoldRegisters(sums);
  // The last stages, which nobody fills again, are not given back.
  if constexpr (Rings::kLateInbox) ArriveCluster<true>();
  const uint32_t inbox = x_ring + static_cast<uint32_t>(Rings::kInboxAt);
  AddInCluster<Shape>(w, args, work.tile, sums, x_ring, inbox, inbox_barrier);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_SCALED_CUH_
