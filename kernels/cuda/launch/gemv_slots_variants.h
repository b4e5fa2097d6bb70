// Which GEMV kernel of compute capability 9.0 runs a 4-bit weight. Included by the launchers alone.
//
//   rows of x   weights                                     kernel
//   1 to 8      of chains of halves of K (launch.of_half):  GemvStreamKernel
//               K > 4096; tables of at most three tiles
//               of 16 outputs a multiprocessor; INT4 of at
//               most two
//   1 to 4      of those, INT4 of K <= 4096, four chains a  GemvOnceKernel
//               half
//   1 to 8      others, K <= 4096                           GemvRingKernel
//               others                                      GemvSlotsKernel
//   9 to 16     K <= 4096, INT4                             GemvSpreadHeldKernel
//               K <= 4096, tables, beside which x of 16     GemvSlotsKernel
//               rows does not fit
//               others                                      GemvSpreadKernel
//
// All but GemvStreamKernel and GemvOnceKernel divide K among 16 warps alike and add in one order: a
// row's bits are the same in each; those two have the bits of each other. Weights that they may
// take come here only where bits may depend on the number of rows (core::HasChainKernels).
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SLOTS_VARIANTS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SLOTS_VARIANTS_H_

#include <algorithm>

#include "kernels/cuda/device/gemv_slots.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/gemv.h"
#include "kernels/cuda/launch/gemv_once_variants.h"
#include "kernels/cuda/launch/gemv_ring_variants.h"
#include "kernels/cuda/launch/gemv_shared.h"
#include "kernels/cuda/launch/gemv_spread_variants.h"
#include "kernels/cuda/launch/gemv_stream_variants.h"

namespace nibble::cuda {

template <class Pairs, class Unit, class Shape, bool kReload>
cudaError_t LaunchSlots(const WeightView& view, const GemvArgs& args, const GemvLaunch& launch,
                        cudaStream_t stream) {
  SlotsArgs places;
  places.partials_at = Unit::kTableBytes + kSlotsWarps * Shape::kSlots * SlotOf<Unit>::kBytes;
  places.warp_floats = args.m * Shape::kPartialPitch;
  places.buffer_floats = kSlotsWarps * places.warp_floats;
  const int bytes = places.partials_at + 2 * places.buffer_floats * 4;
  static_assert(Unit::kTableBytes + kSlotsWarps * Shape::kSlots * SlotOf<Unit>::kBytes +
                    2 * kSlotsWarps * Shape::kColumns * 8 * Shape::kPartialPitch * 4 <=
                kBlockSharedBytes);
  const auto kernel = GemvSlotsKernel<Pairs, Unit, Shape, kReload>;
  const cudaError_t error = AllowAllShared(kernel);
  if (error != cudaSuccess) return error;
  const int blocks = std::min(SlotsTiles<Shape>(view), launch.multiprocessors);
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kSlotsThreads),
                         static_cast<size_t>(bytes), stream, view, args, places);
}

// Whether GemvStreamKernel, or GemvOnceKernel where it takes them, is the fastest of 1 to 8 rows.
template <class Unit>
bool IsStreamed(const WeightView& view, const GemvLaunch& launch) {
  constexpr int kMostTiles = Unit::kTableBytes > 0 ? 3 : 2;  // of a multiprocessor
  if (launch.of_half == 0) return false;
  return view.units > kRingHeldUnits || Tiles16(view) <= kMostTiles * launch.multiprocessors;
}

// RingUnit: for the ring, GemvStreamKernel and GemvOnceKernel, Unit for the other kernels.
template <class Pairs, class RingUnit, class Unit = RingUnit>
cudaError_t LaunchFourBitUnits(const WeightView& view, const GemvArgs& args,
                               const GemvLaunch& launch, cudaStream_t stream) {
  const bool held = view.units <= kRingHeldUnits;
  if (args.m > 8) {
    if (!held) {
      return LaunchSpread<Pairs, Unit, SlotsShape<2, 2, 4, 1>>(view, args, launch, stream);
    }
    if constexpr (Unit::kTableBytes == 0) {
      return LaunchSpreadHeld<Pairs, Unit, SlotsShape<2, 2, 4, 2>>(view, args, launch, stream);
    } else {
      return LaunchSlots<Pairs, Unit, SlotsShape<2, 2, 6, 2>, false>(view, args, launch, stream);
    }
  }
  if (IsStreamed<Unit>(view, launch)) {
    if constexpr (Unit::kTableBytes == 0) {
      if (OnceFits(view, args, launch)) {
        return LaunchOnce<Pairs, RingUnit>(view, args, launch, stream);
      }
    }
    return LaunchStream<Pairs, RingUnit>(view, args, launch, stream);
  }
  if (held) {
    return LaunchRing<Pairs, RingUnit, RingShape<1, 2, 16, 2>>(view, args, launch, stream);
  }
  // x is worth holding for the next tile.
  using Shape = SlotsShape<1, 2, 6, 4>;
  const bool one_tile = SlotsTiles<Shape>(view) <= launch.multiprocessors;
  if (!one_tile && view.units <= 2 * kRingHeldUnits) {
    return LaunchSlots<Pairs, Unit, Shape, false>(view, args, launch, stream);
  }
  return LaunchSlots<Pairs, Unit, SlotsShape<1, 2, 6, 2>, true>(view, args, launch, stream);
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_GEMV_SLOTS_VARIANTS_H_
