// WgmmaClusterKernel for up to 64 rows of BF16 x and units of one scale, in turns of kTurn units of
// each warpgroup. The stages of a turn are unrolled, so that where they lie is part of the
// instructions, and parity and descriptors are computed once a turn (gemm_wgmma_turns.cuh).
//
//   unit of a half of K, kSplits = 2     0 2 4 6 | 8 10 12 14 | 16 18     warpgroup 0
//                                        1 3 5 7 | 9 11 13 15 | 17        warpgroup 1
//   stage, of kTurn * kSplits            0 ... 7 | 0  ...   7 | 0 1 2
//
// x meets the codes in one of three ways (ClusterX): put in the order of words in its stages by two
// warps beside those that fill the rings (TurnInt4Unit), as it lies (TurnQuadInt4Unit), or put in
// the order of half words (TurnHalfWordInt4Unit). The last two add the same 16 inputs at a time as
// WgmmaClusterKernel does, to the same bits.
//
// The ring of weights has the stages of one turn, that of x those of one or of half of one, so that
// a warpgroup waits for each of its stages once a turn (twice for x), in order: no phase of a
// barrier is passed over. K may end within a turn.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_TURNS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_TURNS_CUH_

#include "kernels/cuda/device/gemm_wgmma_cluster.cuh"
#include "kernels/cuda/device/wgmma_units.cuh"

namespace nibble::cuda {

// As WgmmaClusterShape. For a whole turn of x there is no room with 64 rows and 16 stages of
// weights.
template <int kColumns_, int kSplits_, ClusterX kX_>
struct WgmmaClusterTurnsShape : WgmmaClusterShape<kColumns_, 4, kSplits_> {
  static constexpr ClusterX kX = kX_;
  static constexpr int kTurn = kTurnUnits;
  static constexpr int kXTurn = kColumns_ == 64 && kSplits_ == 4 ? kTurn / 2 : kTurn;
};

template <class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaClusterTurnsKernel(const __grid_constant__ WeightView w,
                            const __grid_constant__ WgmmaArgs args,
                            const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Rings = WgmmaClusterRings<Unit, Shape>;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kSplits = Shape::kSplits;
  constexpr int kTurn = Shape::kTurn;
  constexpr int kXTurn = Shape::kXTurn;
  // The parity of a turn's first stages of x changes with every turn, or never.
  static_assert(kXTurn == kTurn || 2 * kXTurn == kTurn);
  static_assert(!Rings::kLateInbox && Unit::kTableBytes == 0);
  constexpr int kParts = Shape::kSmallParts ? 4 : 2;  // of a unit, in turn
  constexpr int kBlocks = 4 / kParts;                 // of 32 inputs in a part
  extern __shared__ __align__(1024) uint32_t shared_words[];
  __shared__ WgmmaClusterBarriers barriers;
  static_assert(sizeof(barriers) + kClusterSharedBytes <= 227 * 1024);
  constexpr uint32_t kXReadableAt =
      Shape::kX == ClusterX::kAsItLies ? kClusterXFullAt : kClusterXReadyAt;
  const uint32_t full = Kept(SharedAddress(barriers.full));
  const uint32_t inbox_barrier = full + kClusterInboxAt;
  const uint32_t x_ring =
      (SharedAddress(shared_words) + kWgmmaAlign - 1) / kWgmmaAlign * kWgmmaAlign;
  const uint32_t ring = x_ring + Rings::kWeightsAt;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  LaunchDependents();
  if (threadIdx.x == Shape::kMultiplying) {
    PrefetchMap(maps.codes);
    PrefetchMap(maps.scales);
    PrefetchMap(maps.x);
    InitClusterBarriers<Unit, Shape>(full, full + kClusterEmptyAt, full + kClusterXFullAt,
                                     full + kClusterXEmptyAt, inbox_barrier);
  }
  __syncthreads();
  ArriveCluster<false>();
  const auto work = WgmmaClusterWork::Of<Shape>(w.units);
  if (warp >= Shape::kGroups * 4) {
    ProduceInCluster<Unit, Shape>(args, maps, work, warp, lane, ring, x_ring, full,
                                  full + kClusterEmptyAt, full + kClusterXFullAt,
                                  full + kClusterXEmptyAt);
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y

  const int tile16 = warp % Shape::kTiles;
  const int split = warp / Shape::kTiles;
  const uint32_t own = ring + split * Rings::kBytes;  // the first stage of this warpgroup
  const uint32_t codes_at = Kept(own + tile16 * Unit::kCodeBytes + Unit::CodesOffset(lane));
  const uint32_t scales_at =
      Kept(own + Rings::kScalesAt + tile16 * Unit::kScaleBytes + lane / 4 * Unit::kRowScaleBytes);
  const uint32_t zeros_at = Kept(own + Rings::kZerosAt + tile16 * Unit::kZeroBytes + lane / 4 * 2);
  const uint32_t barrier = Kept(full + split * 8);
  const uint32_t x_at = OfWarp(OperandStart(x_ring + split * Rings::kXBytes));
  uint32_t parity = 0;
  float sums[kColumns / 2] = {};
  float totals[kColumns / 2] = {};
  uint32_t a[2][kBlocks * 2][4];
  float2 scale = {};  // of the sums
  bool running = false;
#pragma unroll 1
  for (int32_t left = work.end - work.first - split; left > 0; left -= kTurn * kSplits) {
    const uint32_t x_start = OfWarp(x_at);
#pragma unroll
    for (int stage = 0; stage < kTurn; ++stage) {
      if (stage > 0 && left <= stage * kSplits) break;
      const uint32_t offset = stage * kSplits * Rings::kBytes;
      const int x_stage = stage % kXTurn;
      const uint32_t x_parity = kXTurn == kTurn ? parity : static_cast<uint32_t>(stage / kXTurn);
      const uint64_t x = OperandAt(x_start + x_stage * kSplits * (Rings::kXBytes >> 4));
      AwaitPhase(barrier + stage * kSplits * 8, parity);
      Unit now;
      now.Load(codes_at + offset, scales_at + offset, zeros_at + offset);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        auto& fragments = a[part % 2];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
          uint32_t low[4];
          uint32_t high[4];
          now.Decode(0, part * kBlocks + i, low, high);
          ToFragments(low, high, fragments + 2 * i);
        }
        if (part == kParts / 2 - 1) now.LoadSecond(codes_at + offset);
        if (part == 0 && (stage > 0 || running)) {
          WgmmaWait<0>();
          HoldRegisters(sums);
          HoldRegisters(a[1]);
          ArriveByWarp(barrier + kClusterXEmptyAt + (x_stage + kXTurn - 1) % kXTurn * kSplits * 8);
          AddScaled(totals, sums, scale);
        }
        HoldRegisters(sums);
        HoldRegisters(fragments);
        if (part == 0) AwaitPhase(barrier + kXReadableAt + x_stage * kSplits * 8, x_parity);
        if (part == kParts - 1) ArriveByWarp(barrier + kClusterEmptyAt + stage * kSplits * 8);
        MultiplyUnitPart<BF16Pairs, Rings::kXHalfBytes>(sums, fragments, x, part, part == 0);
        HoldRegisters(a[(part + 1) % 2]);
      }
      scale = now.Scale();
    }
    running = true;
    parity ^= 1;
  }
  WgmmaWait<0>();
  HoldRegisters(sums);
  // The last stages, which nobody fills again, are not given back.
  const uint32_t inbox = x_ring + static_cast<uint32_t>(Rings::kInboxAt);
  AddScaled(totals, sums, scale);
  AddInCluster<Shape>(w, args, work.tile, totals, x_ring, inbox, inbox_barrier);
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_CLUSTER_TURNS_CUH_
