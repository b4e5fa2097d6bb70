// The ring of gemv_ring.cuh in the order of one chain of gemv_chain.cuh. What a chain adds is the
// products of a unit's groups, each from 0 and times its scale, one after another: only the fused
// multiply-adds are in order. So 16 warps multiply every 16th unit each, as in the ring, but store
// the products of every group apart, beside their scales, and the reducers add them: a round of 16
// units at a time, while the multiplying warps are at the next one.
//
//   registers        decode -> mma.m16n8k16 from 0 -> products of a group
//        | [buffer][warp][group][row of x, then scales][output]; arrive on `partial_full`
//   reducers         sum = fma(scale, products, sum), unit by unit, group by group
//        | arrive on `partial_empty`; after the last round
//   y
//
// Outputs g and g + 8 of a tile of 16 lie side by side.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_RING_ORDERED_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_RING_ORDERED_CUH_

#include "kernels/cuda/device/gemv_ring_layout.cuh"
#include "kernels/cuda/device/output_factors.cuh"

namespace nibble::cuda {

// kGroups: groups of scales of a unit, whose products lie apart, each with its scales.
template <int kGroups_>
struct OrderedShape : RingShape<1, 2, 16, 2> {
  static constexpr bool kOrdered = true;
  static constexpr int kGroups = kGroups_;
  static constexpr int kRowBytes = kPartialPitch * 4;
  // Of a group, of a warp's unit, and of all.
  __host__ __device__ static constexpr int GroupBytes(int m) { return (m + 1) * kRowBytes; }
  __host__ __device__ static constexpr int UnitBytes(int m) { return kGroups * GroupBytes(m); }
  __host__ __device__ static constexpr int PartialBytes(int m) { return kWarps * UnitBytes(m); }
  // Those without a row do not take part.
  __device__ static int ReducersOf(int m) { return min(m, kReducers); }
};

// products[tile][group] of one unit of each tile, from 0.
template <class Pairs, class Unit, int kTiles, class X>
__device__ inline void MultiplyApart(const WeightView& w, const uint32_t* table,
                                     const Unit (&units)[kTiles], const X& x,
                                     float (&products)[kTiles][Unit::kScalesPerUnit][4]) {
#pragma unroll
  for (int i = 0; i < kTiles * Unit::kScalesPerUnit * 4; ++i) (&products[0][0][0])[i] = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int group = i * Unit::kScalesPerUnit / 4;
    const uint4 b = x.Part(0, i);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      MultiplyPart<Pairs>(w, table, units[tile], i, b, products[tile][group]);
    }
  }
}

// A warp's products and scales of a unit to `to`.
template <class Shape, class Unit, int kTiles>
__device__ inline void StoreApart(const WeightView& w, const Unit (&units)[kTiles],
                                  const float (&products)[kTiles][Unit::kScalesPerUnit][4], int m,
                                  int lane, uint32_t to) {
  const int group_bytes = Shape::GroupBytes(m);
  const int row = lane % 4 * 2;
  const uint32_t own = to + lane / 4 * 8;
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    if (row + odd < m) {
      const uint32_t at = own + (row + odd) * Shape::kRowBytes;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int group = 0; group < Unit::kScalesPerUnit; ++group) {
          StoreShared2Floats(at + group * group_bytes + tile * kUnitRows * 4,
                             products[tile][group][odd], products[tile][group][odd + 2]);
        }
      }
    }
  }
  if (lane % 4 == 0) {
    const uint32_t at = own + m * Shape::kRowBytes;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int group = 0; group < Unit::kScalesPerUnit; ++group) {
        const float2 scale = units[tile].Scale(w, group);
        StoreShared2Floats(at + group * group_bytes + tile * kUnitRows * 4, scale.x, scale.y);
      }
    }
  }
}

// sums += scale * products of units 0 to `units` of a round. The thread's rows: first_row and every
// kReducers-th from there; `from`: its place in row 0.
template <class Shape, int kMyRows>
__device__ inline void AddRound(uint32_t from, int first_row, int m, int units,
                                float (&sums)[kMyRows]) {
  constexpr int kRowBytes = Shape::kRowBytes;
  constexpr int kGroups = Shape::kGroups;
  const int group_bytes = Shape::GroupBytes(m);
  const uint32_t scales_at = m * kRowBytes - first_row * kRowBytes;
  from += first_row * kRowBytes;
  const auto add = [&](uint32_t at) {
    const float scale = LoadShared1Float(at + scales_at);
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) {
      const float product = LoadShared1Float(at + i * Shape::kReducers * kRowBytes);
      sums[i] = __fmaf_rn(scale, product, sums[i]);
    }
  };
  if (units == Shape::kWarps) {
#pragma unroll 16
    for (int i = 0; i < Shape::kWarps * kGroups; ++i, from += group_bytes) add(from);
  } else {
    for (int i = 0; i < units * kGroups; ++i, from += group_bytes) add(from);
  }
}

// A reducing warp that has kMyRows rows, first_row the first of them; a lane is an output.
template <class Unit, class Shape, int kMyRows>
__device__ inline void ReduceRows(const Ring<Unit, Shape>& r, int lane, int first_row) {
  static_assert(Shape::kRows == 32);
  const int output = lane / kUnitRows * kUnitRows + lane % kUnitRows / 2 + lane % 2 * 8;
  const int m = r.args.m;
  RingSlot slot;
  for (int tile = blockIdx.x; tile < r.tiles; tile += gridDim.x) {
    const int n = tile * Shape::kRows + output;
    const bool stored = n < r.w.n;
    OutputFactors factors(Unit::kUnscale);
    if (r.w.bias != nullptr && stored) factors.bias = __ldg(r.w.bias + n);
    float sums[kMyRows] = {};
    for (int round = 0; round < r.rounds; ++round) {
      WaitBarrier(SharedAddress(r.partial_full + slot.stage), slot.parity);
      const uint32_t from = SharedAddress(r.Partials(slot.stage)) + lane * 4;
      AddRound<Shape>(from, first_row, m, min(Shape::kWarps, r.w.units - round * Shape::kWarps),
                      sums);
      Arrive(SharedAddress(r.partial_empty + slot.stage));
      slot.Advance(1, r.ring.partial_buffers);
    }
    if (!stored) continue;
#pragma unroll
    for (int i = 0; i < kMyRows; ++i) {
      const int row = first_row + i * Shape::kReducers;
      StoreElement(r.args.y, r.args.y_type, row * r.args.y_stride + n, factors.Finish(sums[i]));
    }
  }
}

template <class Unit, class Shape>
__device__ inline void ReduceOrdered(const Ring<Unit, Shape>& r, int thread) {
  const int warp = __shfl_sync(0xFFFFFFFFu, thread / 32, 0);
  const int lane = thread % 32;
  static_assert(Shape::kReducers == 3);
  switch ((r.args.m - warp + Shape::kReducers - 1) / Shape::kReducers) {
    case 1:
      return ReduceRows<Unit, Shape, 1>(r, lane, warp);
    case 2:
      return ReduceRows<Unit, Shape, 2>(r, lane, warp);
    case 3:
      return ReduceRows<Unit, Shape, 3>(r, lane, warp);
    default:
      return;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_RING_ORDERED_CUH_
