// The types that scaled weights of INT4 are multiplied with. Included by the launchers alone.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_FACTORS_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_FACTORS_H_

#include "kernels/cuda/device/wgmma_units.cuh"
#include "kernels/cuda/launch/gemm_wgmma.h"

namespace nibble::cuda {

template <class Base_, class Factors_>
struct UnitAndFactors {
  using Base = Base_;
  using Factors = Factors_;
};

// run(UnitAndFactors) of UnitOf<kScales, kZeroPoints> and the Int4Factors of the weight's scales.
template <template <int, bool> class UnitOf, bool kZeroPoints, class Run>
cudaError_t WithInt4Factors(const WeightView& view, const WgmmaLaunch& launch, Run run) {
  // The types of more scales are told apart at run time: kernels are many.
  using OfEither = Int4Factors<kZeroPoints, HalfScales::kEither>;
  switch (launch.scales_per_unit) {
    case 1: {
      using Base = UnitOf<1, kZeroPoints>;
      using OfBF16 = Int4Factors<kZeroPoints, HalfScales::kBF16>;
      using OfF16 = Int4Factors<kZeroPoints, HalfScales::kF16>;
      return view.scale_type == Element::kBF16 ? run(UnitAndFactors<Base, OfBF16>{})
                                               : run(UnitAndFactors<Base, OfF16>{});
    }
    case 2:
      return run(UnitAndFactors<UnitOf<2, kZeroPoints>, OfEither>{});
    case 4:
      return run(UnitAndFactors<UnitOf<4, kZeroPoints>, OfEither>{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_WGMMA_FACTORS_H_
