// How kernels whose bits must agree finish the sums of an output.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_OUTPUT_FACTORS_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_OUTPUT_FACTORS_CUH_

#include <cstdint>

#include "kernels/cuda/device/weight_view.cuh"
#include "kernels/cuda/device/wgmma_args.cuh"

namespace nibble::cuda {

// What a finished sum of an output becomes before it is rounded.
struct OutputFactors {
  float unscale;
  float scale = 1.0f;
  float bias = -0.0f;  // which leaves every sum as it is

  __device__ explicit OutputFactors(float of_codes) : unscale(of_codes) {}
  __device__ OutputFactors(const WeightView& w, const WgmmaArgs& args, int32_t output)
      : unscale(args.unscale) {
    if (output >= w.n) return;
    if (args.row_scales != nullptr) scale = args.row_scales[output * args.row_scales_stride];
    if (w.bias != nullptr) bias = w.bias[output];
  }
  // Of a weight whose units are not scaled by groups, its scales too.
  template <class Unit>
  __device__ static OutputFactors Of(const WeightView& w, int32_t output) {
    OutputFactors factors(Unit::kUnscale);
    if constexpr (Unit::kScalesPerUnit == 0) {
      factors.scale = static_cast<const float*>(w.scales)[w.rows_per_scale == 1 ? output : 0];
    }
    if (w.bias != nullptr) factors.bias = w.bias[output];
    return factors;
  }
  __device__ float Finish(float sum) const {
    return __fadd_rn(__fmul_rn(__fmul_rn(sum, unscale), scale), bias);
  }
};

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_OUTPUT_FACTORS_CUH_
