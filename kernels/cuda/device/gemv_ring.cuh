// The GEMV of gemv.cuh for compute capability 9.0: the weights stream through shared memory.
//
// A block takes kTiles x 16 outputs and the whole K at a time. One warp produces: it bulk-copies
// the next units of every tile into a ring of stages, as far ahead as the ring is long. The others,
// kWarps of them, multiply: each takes every kWarps-th unit of K, the same of every tile, so that
// which warp takes which unit depends on K alone. The partial sums of the warps are added in their
// order by a third kind, kReducers of them, while the others go on with the next tile.
//
//   device memory   [tile][unit]  1 KB or 2 KB each
//        | bulk copies, complete on `full`
//   ring            [stage][tile][unit]: codes | scales | zero points, then rows of x if staged
//        | 16-byte loads, one lane's fragments each; arrive on `empty`
//   registers       decode -> mma.m16n8k16, x as its 8 columns -> sums * scales
//        | partial sums in shared memory; arrive on `partial_full`
//   y               sum of the warps, + bias; arrive on `partial_empty`
//
// An ordered shape keeps the products of units apart instead (ring_ordered.cuh).
//
// x is held in registers for the whole launch (kHeld units a warp), lies in shared memory whole
// (resident), or comes in the stages beside its weights.
//
// The kernel takes part in programmatic dependent launch: it fills its ring before the kernels in
// front of it are done, and touches x and y only then. The first box of a tensor map waits for the
// map, which lies in the launch's parameters and is cold: with kOwnFirst the multiplying warps copy
// their first units themselves meanwhile, 16 bytes a lane, to where the box would have put them.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/gemv_ring_producer.cuh"
#include "kernels/cuda/device/ring_ordered.cuh"
#include "kernels/cuda/device/shared_fragments.cuh"

namespace nibble::cuda {

// The reducing warps: the sums of each tile over the multiplying warps, in their order, to y of
// type T. A thread's output is the same in every row of a tile: what belongs to it is asked for
// before the sums are there.
template <class T, class Unit, class Shape>
__device__ inline void ReducePartialsTo(const Ring<Unit, Shape>& r, int thread) {
  constexpr int kRows = Shape::kRows;
  constexpr int kRowPitch = Shape::kPartialPitch;
  constexpr int kRowStep = Shape::kReducers * 32 / kRows;
  static_assert(kRowStep * kRows == Shape::kReducers * 32);
  const int m = r.args.m;
  const int warp_pitch = m * kRowPitch;
  const int output = thread % kRows;
  const int first_row = thread / kRows;
  RingSlot slot;
  for (int tile = blockIdx.x; tile < r.tiles; tile += gridDim.x) {
    const int n = tile * kRows + output;
    const bool stored = n < r.w.n;
    float scale = 1.0f;
    float bias = 0.0f;
    if constexpr (Unit::kScalesPerUnit == 0) {
      const int at = r.w.rows_per_scale == 1 ? n : 0;
      if (stored) scale = __ldg(static_cast<const float*>(r.w.scales) + at);
    }
    if (r.w.bias != nullptr && stored) bias = __ldg(r.w.bias + n);
    const float* from = r.Partials(slot.stage) + first_row * kRowPitch + output;
    WaitBarrier(SharedAddress(r.partial_full + slot.stage), slot.parity);
    for (int row = first_row; row < m; row += kRowStep, from += kRowStep * kRowPitch) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < Shape::kWarps; ++i) sum = __fadd_rn(sum, from[i * warp_pitch]);
      sum = __fmul_rn(sum, Unit::kUnscale);
      if constexpr (Unit::kScalesPerUnit == 0) sum = __fmul_rn(sum, scale);
      if (r.args.x_scales != nullptr) {
        sum = __fmul_rn(sum, r.args.x_scales[row * r.args.x_scales_stride]);
      }
      if (r.w.bias != nullptr) sum = __fadd_rn(sum, bias);
      if (stored) static_cast<T*>(r.args.y)[row * r.args.y_stride + n] = FromFloat<T>(sum);
    }
    Arrive(SharedAddress(r.partial_empty + slot.stage));
    slot.Advance(1, r.ring.partial_buffers);
  }
}

template <class Unit, class Shape>
__device__ inline void ReducePartials(const Ring<Unit, Shape>& r, int thread) {
  switch (r.args.y_type) {
    case Element::kBF16:
      return ReducePartialsTo<__nv_bfloat16>(r, thread);
    case Element::kF16:
      return ReducePartialsTo<__half>(r, thread);
    default:
      return ReducePartialsTo<float>(r, thread);
  }
}

// A multiplying warp's sums of a tile to the reducers.
template <class Shape>
__device__ inline void StorePartials(const float (&sums)[Shape::kTiles][Shape::kColumns][4], int m,
                                     int lane, float* to) {
#pragma unroll
  for (int column = 0; column < Shape::kColumns; ++column) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int row = column * 8 + lane % 4 * 2 + odd;
      if (row >= m) continue;
      float* at = to + row * Shape::kPartialPitch + lane / 4;
#pragma unroll
      for (int part = 0; part < Shape::kTiles; ++part) {
        at[part * kUnitRows] = sums[part][column][odd];
        at[part * kUnitRows + 8] = sums[part][column][odd + 2];
      }
    }
  }
}

// x: held in registers where Shape says so, which then holds ceil(units / kWarps) at least.
template <class Pairs, class Unit, class Shape>
__global__ void __launch_bounds__(Shape::kAllThreads, 1)
    GemvRingKernel(const __grid_constant__ WeightView w, const __grid_constant__ GemvArgs args,
                   const __grid_constant__ RingArgs ring_args,
                   const __grid_constant__ typename Unit::Map map) {
#if __CUDA_ARCH__ >= 900
  constexpr int kColumns = Shape::kColumns;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kStageUnits = Shape::kStageUnits;
  extern __shared__ __align__(128) uint32_t shared_words[];
  __shared__ __align__(8) uint64_t barriers[kRingBarriers];
  const Ring<Unit, Shape> ring(w, args, ring_args, reinterpret_cast<char*>(shared_words), barriers);
  const int lane = threadIdx.x % 32;
  // Known to be the same for the whole warp: branches on it need no reconvergence.
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const RingProducer<Unit, Shape> producer{ring, map, lane, EvictFirstPolicy()};
  LaunchDependents();

  if (warp == Shape::kWarps) {
    // By one lane: a fence of all of them costs the launch 1.2 us.
    if (lane == 0) {
      if constexpr (Unit::kBoxed) PrefetchMap(map);
      for (int stage = 0; stage < ring_args.stages; ++stage) {
        InitBarrier(SharedAddress(ring.full + stage), 1);
        InitBarrier(SharedAddress(ring.empty + stage), kStageUnits * kWarpArrivals);
      }
      for (int part = 0; part < kRingMaxParts; ++part) {
        InitBarrier(SharedAddress(ring.x_full + part), 1);
      }
      for (int buffer = 0; buffer < 2; ++buffer) {
        InitBarrier(SharedAddress(ring.partial_full + buffer), Shape::kWarps * kWarpArrivals);
        InitBarrier(SharedAddress(ring.partial_empty + buffer),
                    Shape::ReducersOf(args.m) * kWarpArrivals);
      }
      FenceBarrierInit();
    }
    __syncwarp();
    producer.Start();
  }
  if constexpr (Shape::kOwnFirst) {
    if (warp < Shape::kWarps) CopyOwnFirst<Unit, Shape>(ring, warp, lane);
  }
  static_assert(Unit::kTableBytes == 0 || Shape::kWarps == 16);
  if (warp < Shape::kWarps) FillTableByWarps<Pairs, Unit>(w, shared_words, warp, lane);
  WaitForDependencies();
  using Held = Fragments<typename Unit::Inputs, kColumns>;
  Held x[Shape::kHeldX ? Shape::kHeld : 1];
  if constexpr (Shape::kHeldX) {
    if (warp < Shape::kWarps) {
#pragma unroll
      for (int i = 0; i < Shape::kHeld; ++i) {
        const int unit = warp + i * Shape::kWarps;
        if (unit < w.units) x[i].Load(args, unit, lane);
      }
    }
  }
  __syncthreads();
  if (warp == Shape::kWarps) {
    producer.Run();
    return;
  }
  if (warp > Shape::kWarps) {
    const int thread = threadIdx.x - (Shape::kWarps + 1) * 32;
    if constexpr (Shape::kOrdered) {
      ReduceOrdered<Unit, Shape>(ring, thread);
    } else {
      ReducePartials<Unit, Shape>(ring, thread);
    }
    return;
  }

  // A thread's own addresses: of its part of stage 0, and of its rows of x before the first unit.
  using Stage = RingStage<Unit, Shape>;
  const int stages = Kept(ring_args.stages);
  const int stage_bytes = Kept(ring.layout.stage_bytes);
  const int of_stage = warp % kStageUnits;
  const uint32_t ring_at = Kept(SharedAddress(ring.shared)) + ring.layout.ring_offset;
  const uint32_t codes_at = Kept(ring_at + of_stage * Stage::kUnitPitch + Unit::CodesOffset(lane));
  const uint32_t scales_at = Kept(ring_at + Stage::kScalesAt + of_stage * Unit::kScaleBytes +
                                  lane / 4 * Unit::kRowScaleBytes);
  const uint32_t zeros_at = ring_at + Stage::kZerosAt + of_stage * Unit::kZeroBytes + lane / 4 * 2;
  const uint32_t full_at = Kept(SharedAddress(ring.full));
  const int partial_pitch = args.m * Shape::kPartialPitch;
  const bool staged = ring.Staged();
  uint32_t rows_at[kColumns];
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int row = Held::Row(args, column, lane);
    const uint32_t at = staged ? ring_at + RingStage<Unit, Shape>::kBytes +
                                     row * RingStagedRowBytes<Shape>() + of_stage * kUnitXBytes
                               : SharedAddress(ring.shared) + ring.layout.x_offset +
                                     row * RingResidentRowBytes(w.units) + warp * kUnitXBytes;
    rows_at[column] = Kept(at + Unit::Inputs::Offset(lane));
  }

  // A stage is taken (waited for, its weights loaded), used (with its x), and given back.
  RingSlot taken;
  RingSlot used;
  taken.stage = used.stage = warp / kStageUnits;
  const auto take = [&](Unit(&units)[kTiles], bool real) {
    const uint32_t stage = taken.stage * stage_bytes;
    WaitBarrier(full_at + taken.stage * 8, taken.parity);
    if (real) {
#pragma unroll
      for (int part = 0; part < kTiles; ++part) {
        units[part].Load(codes_at + stage + part * Stage::kTilePitch,
                         scales_at + stage + part * kStageUnits * Unit::kScaleBytes,
                         zeros_at + stage + part * kStageUnits * Unit::kZeroBytes);
      }
    }
    taken.Advance(Shape::kStagesPerRound, stages);
  };
  const auto give_back = [&] {
    ArriveByWarp(full_at + (kRingEmptyAt + used.stage) * 8);
    used.Advance(Shape::kStagesPerRound, stages);
  };
  float sums[kTiles][kColumns][4];
  RingSlot partial;
  // A buffer of partial sums is free; the first phase of `partial_empty` ends with its first use.
  const auto wait_for_partials = [&] {
    WaitBarrier(full_at + (kRingPartialEmptyAt + partial.stage) * 8, partial.parity ^ 1);
  };
  const auto give_partials = [&] {
    Arrive(full_at + (kRingPartialFullAt + partial.stage) * 8);
    partial.Advance(1, ring_args.partial_buffers);
  };
  const int rounds = Kept(ring.rounds);
  const int my_rounds = Kept((w.units - warp + Shape::kWarps - 1) / Shape::kWarps);
  bool first = true;
  for (int tile = blockIdx.x; tile < ring.tiles; tile += gridDim.x) {
#pragma unroll
    for (int i = 0; i < kTiles * kColumns * 4; ++i) (&sums[0][0][0])[i] = 0.0f;
    const auto turn = [&](int round, const Held& held) {
      if constexpr (Shape::kOwnFirst) {
        if (round == 0 && first) {
          WaitForAsyncCopies<0>();
          __syncwarp();
        }
      }
      Unit units[kTiles];
      if (round < rounds) take(units, round < my_rounds);
      if (!staged && round < rounds) give_back();
      if constexpr (Shape::kOrdered) {
        float products[kTiles][Unit::kScalesPerUnit][4];
        const bool real = round < my_rounds;
        if (real) MultiplyApart<Pairs, Unit, kTiles>(w, shared_words, units, held, products);
        if (round < rounds) {
          wait_for_partials();
          if (real) {
            StoreApart<Shape>(
                w, units, products, args.m, lane,
                SharedAddress(ring.Partials(partial.stage)) + warp * Shape::UnitBytes(args.m));
          }
          give_partials();
        }
      } else if constexpr (Shape::kHeldX) {
        if (round < my_rounds) {
          MultiplyUnits<Pairs, Unit, kColumns, kTiles, Shape::kChains>(w, shared_words, units, held,
                                                                       sums);
        }
      } else {
        if (round < my_rounds) {
          if (!staged && first) {
            WaitBarrier(SharedAddress(ring.x_full + round / ring.XPartRounds()), 0);
          }
          const uint32_t offset =
              staged ? used.stage * stage_bytes : round * Shape::kWarps * kUnitXBytes;
          SharedFragments<typename Unit::Inputs, kColumns> fragments;
#pragma unroll
          for (int column = 0; column < kColumns; ++column) {
            fragments.rows_at[column] = rows_at[column] + offset;
          }
          MultiplyUnits<Pairs, Unit, kColumns, kTiles, Shape::kChains>(w, shared_words, units,
                                                                       fragments, sums);
        }
        if (staged && round < rounds) give_back();
      }
    };
    if constexpr (Shape::kHeldX) {
#pragma unroll
      for (int round = 0; round < Shape::kHeld; ++round) turn(round, x[round]);
    } else {
      for (int round = 0; round < rounds; ++round) turn(round, x[0]);
    }
    first = false;
    if constexpr (!Shape::kOrdered) {
      wait_for_partials();
      StorePartials<Shape>(sums, args.m, lane, ring.Partials(partial.stage) + warp * partial_pitch);
      give_partials();
    }
  }
#endif
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_GEMV_RING_CUH_
