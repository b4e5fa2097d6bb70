#include "kernels/cuda/launch/fp8_gemm.h"

#include <algorithm>

#include "kernels/cuda/device/fp8_activations.cuh"
#include "kernels/cuda/device/fp8_gemm.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/grid.h"
#include "kernels/cuda/launch/tensor_map.h"

namespace nibble::cuda {
namespace {

template <class T>
cudaError_t Quantize(const ActivationArgs& args, const Fp8Rows& to, cudaStream_t stream) {
  const bool vector = args.k % 8 == 0 && args.x_stride * sizeof(T) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
  return LaunchDependent(
      vector ? QuantizeActivationsKernel<T, true> : QuantizeActivationsKernel<T, false>,
      GridFor(args.m, 1), dim3(kFp8RowThreads), 0, stream, args, to);
}

template <int kRows, bool kBlocks>
cudaError_t Launch(const WeightView& view, const Fp8GemmLaunch& launch, cudaStream_t stream) {
  using Shape = Fp8GemmShape<kRows, kBlocks>;
  CUtensorMap w_map;
  CUtensorMap x_map;
  const int64_t weight_rows = (int64_t{view.n} + kUnitRows - 1) / kUnitRows * kUnitRows;
  const int64_t weight_row_bytes = int64_t{view.units} * kUnitInputs;
  cudaError_t error = MakeRowsMap(view.codes, weight_rows, weight_row_bytes, weight_row_bytes,
                                  kFp8GemmOutputs, w_map);
  if (error != cudaSuccess) return error;
  error = MakeRowsMap(launch.x.codes, launch.m, view.k, launch.x.stride, kRows, x_map);
  if (error != cudaSuccess) return error;
  Fp8GemmArgs args;
  args.m = launch.m;
  args.n = view.n;
  args.steps = view.units;
  args.x_scales = launch.x.scales;
  args.x_row_stride = launch.x.row_stride;
  args.x_step_stride = launch.x.step_stride;
  args.w_scales = static_cast<const float*>(view.scales);
  args.rows_per_scale = view.rows_per_scale;
  args.groups = view.groups;
  args.group_size = view.group_size;
  args.bias = view.bias;
  args.y = launch.y;
  args.y_type = launch.y_type;
  args.y_stride = launch.y_stride;
  const auto kernel = Fp8GemmKernel<Shape>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               Shape::kSharedBytes);
  if (error != cudaSuccess) return error;
  const int64_t tiles =
      (launch.m + kRows - 1) / kRows * ((int64_t{view.n} + kFp8GemmOutputs - 1) / kFp8GemmOutputs);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, launch.multiprocessors));
  return LaunchDependent(kernel, dim3(blocks), dim3(Shape::kThreads), Shape::kSharedBytes, stream,
                         w_map, x_map, args);
}

template <bool kBlocks>
cudaError_t LaunchRows(const WeightView& view, const Fp8GemmLaunch& launch, cudaStream_t stream) {
  if (launch.m <= 16) return Launch<16, kBlocks>(view, launch, stream);
  if (launch.m <= 32) return Launch<32, kBlocks>(view, launch, stream);
  if (launch.m <= 64) return Launch<64, kBlocks>(view, launch, stream);
  return Launch<128, kBlocks>(view, launch, stream);
}

}  // namespace

cudaError_t LaunchFp8Quantize(const ActivationArgs& args, uint8_t* codes, int32_t stride,
                              float* scales, int64_t step_stride, cudaStream_t stream) {
  const Fp8Rows to{codes, stride, scales, step_stride};
  switch (args.x_type) {
    case Element::kF32:
      return Quantize<float>(args, to, stream);
    case Element::kF16:
      return Quantize<__half>(args, to, stream);
    case Element::kBF16:
      return Quantize<__nv_bfloat16>(args, to, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchFp8CopyCodes(const ActivationArgs& args, uint8_t* codes, int32_t stride,
                               cudaStream_t stream) {
  CopyCodesKernel<<<GridFor(args.m * (stride / 16), kFp8RowThreads), kFp8RowThreads, 0, stream>>>(
      static_cast<const uint8_t*>(args.x), args.x_stride, args.m, args.k, codes, stride);
  return cudaGetLastError();
}

cudaError_t LaunchFp8CopyScales(const ActivationArgs& args, int32_t steps, float* scales,
                                int64_t step_stride, cudaStream_t stream) {
  CopyScalesKernel<<<GridFor(args.m * steps, kFp8RowThreads), kFp8RowThreads, 0, stream>>>(
      args.x_scales, args.x_scales_stride, args.m, steps, scales, step_stride);
  return cudaGetLastError();
}

cudaError_t LaunchFp8Gemm(const WeightView& view, const Fp8GemmLaunch& launch,
                          cudaStream_t stream) {
  return launch.blocks ? LaunchRows<true>(view, launch, stream)
                       : LaunchRows<false>(view, launch, stream);
}

}  // namespace nibble::cuda
