// WgmmaKernel for up to 64 rows of BF16 x, where every tile is one block's and K is whole turns of
// kTurnUnits units. The stages of a turn are unrolled, so that where they lie is part of the
// instructions, and parity and descriptors are computed once a turn: a third fewer instructions
// beside the multiplications, which is what bounds this loop.
//
// The ring has the stages of one turn, so that a turn begins with the first stage and each of them
// is waited for once a turn, in order: no phase of a barrier is passed over.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_TURNS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_TURNS_CUH_

#include "kernels/cuda/device/gemm_wgmma.cuh"
#include "kernels/cuda/device/wgmma_units.cuh"

namespace nibble::cuda {

template <class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaTurnsKernel(const __grid_constant__ WeightView w, const __grid_constant__ WgmmaArgs args,
                     const __grid_constant__ WgmmaMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Stage = WgmmaStage<Unit, Shape>;
  constexpr int kColumns = Shape::kColumns;
  static_assert(Unit::kScalesPerUnit == 1, "with two ptxas finds too few registers (C7511)");
  constexpr int kParts = Shape::kSmallParts ? 4 : 2;  // of a unit, in turn
  constexpr int kBlocks = 4 / kParts;                 // of 32 inputs in a part
  extern __shared__ __align__(1024) uint32_t shared_words[];
  __shared__ WgmmaBarriers barriers;
  const uint32_t full = Kept(SharedAddress(barriers.full));
  const uint32_t ring = (SharedAddress(shared_words) + Unit::kTableBytes + kWgmmaAlign - 1) /
                        kWgmmaAlign * kWgmmaAlign;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const uint32_t staging = ring + kTurnUnits * Stage::kBytes + warp / 4 * Shape::kStagingBytes;
  LaunchDependents();
  if (threadIdx.x == Shape::kMultiplying) {
    InitRing(full, full + kWgmmaEmptyAt, kTurnUnits, Shape::kGroups * 4);
    for (int stage = 0; stage < kTurnUnits; ++stage) InitReady<Unit>(full, stage);
    FenceBarrierInit();
  }
  if (warp < Shape::kGroups * 4) Unit::FillTable(w, shared_words, Shape::kMultiplying);
  __syncthreads();
  if (warp >= Shape::kGroups * 4) {
    ReleaseRegisters<Shape::kProducerRegisters>();
    FeedStages<Unit, Shape>(w, args, maps, ring, full, warp - Shape::kGroups * 4, lane);
    return;
  }
  TakeRegisters<Shape::kRegisters>();
  WaitForDependencies();  // of y

  const uint32_t codes_at =
      Kept(ring + Stage::kCodesAt + warp * Unit::kCodeBytes + Unit::CodesOffset(lane));
  const uint32_t scales_at =
      Kept(ring + Stage::kScalesAt + warp * Unit::kScaleBytes + lane / 4 * Unit::kRowScaleBytes);
  const uint32_t zeros_at = Kept(ring + Stage::kZerosAt + warp * Unit::kZeroBytes + lane / 4 * 2);
  const uint32_t x_at = OfWarp(OperandStart(ring));
  const uint32_t table = SharedAddress(shared_words);
  const auto give_back = [&](int stage) { ArriveByWarp(full + kWgmmaEmptyAt + stage * 8); };
  uint32_t parity = 0;
  float sums[kColumns / 2];
  float totals[kColumns / 2];
  uint32_t a[2][kBlocks * 2][4];
  WgmmaWork<Asking::kWarp> work(args, w.units);
  while (work.Next(args, w.units)) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) totals[i] = 0.0f;
    float2 scale = {};  // of the sums
    bool running = false;
#pragma unroll 1
    for (int32_t left = w.units; left > 0; left -= kTurnUnits) {
      const uint32_t x_start = OfWarp(x_at);
#pragma unroll
      for (int stage = 0; stage < kTurnUnits; ++stage) {
        const uint32_t offset = stage * Stage::kBytes;
        const uint64_t x = OperandAt(x_start + (offset >> 4));
        AwaitPhase(full + kWgmmaReadableAt<Unit> + stage * 8, parity);
        Unit now;
        now.Load(codes_at + offset, scales_at + offset, zeros_at + offset);
        if constexpr (kParts == 2) now.LoadSecond(codes_at + offset);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          auto& fragments = a[part % 2];
          if (kParts == 4 && part == 2) now.LoadSecond(codes_at + offset);
#pragma unroll
          for (int i = 0; i < kBlocks; ++i) {
            uint32_t low[4];
            uint32_t high[4];
            now.Decode(table, part * kBlocks + i, low, high);
            ToFragments(low, high, fragments + 2 * i);
          }
          if (part == 0 && (stage > 0 || running)) {
            WgmmaWait<0>();
            HoldRegisters(sums);
            HoldRegisters(a[1]);
            give_back((stage + kTurnUnits - 1) % kTurnUnits);
            AddScaled(totals, sums, scale);
          }
          HoldRegisters(sums);
          HoldRegisters(fragments);
          MultiplyUnitPart<BF16Pairs, Stage::kHalfBytes>(sums, fragments, x, part, part == 0);
          HoldRegisters(a[(part + 1) % 2]);
        }
        scale = now.Scale();
      }
      running = true;
      parity ^= 1;
    }
    WgmmaWait<0>();
    give_back(kTurnUnits - 1);
    HoldRegisters(sums);
    AddScaled(totals, sums, scale);
    const int32_t n = work.tile / args.column_tiles * Shape::kRows + warp / 4 * kWgmmaRows;
    StoreTotals<Shape>(w, args, totals, n, work.tile % args.column_tiles * kColumns, staging);
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMM_WGMMA_TURNS_CUH_
