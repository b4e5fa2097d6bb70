#include "kernels/cuda/launch/fp8_gemm.h"

#include <algorithm>

#include "kernels/cuda/device/fp8_activations.cuh"
#include "kernels/cuda/device/fp8_gemm.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/grid.h"
#include "kernels/cuda/launch/tensor_map.h"

namespace nibble::cuda {
namespace {

template <class T, class Code>
cudaError_t Quantize(const ActivationArgs& args, const Fp8Rows& to, cudaStream_t stream) {
  const bool vector = args.k % 8 == 0 && args.x_stride * sizeof(T) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
  return LaunchDependent(
      vector ? QuantizeActivationsKernel<T, Code, true> : QuantizeActivationsKernel<T, Code, false>,
      GridFor(args.m, 1), dim3(kFp8RowThreads), 0, stream, args, to);
}

// 16-bit rows that fit in registers.
bool CanHold(const ActivationArgs& args) {
  return args.k % 16 == 0 && args.k <= 8 * kFp8RowThreads * 8 && args.x_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
}

template <class T, int kSlots>
cudaError_t QuantizeSlots(const ActivationArgs& args, const Fp8Rows& to, cudaStream_t stream) {
  return LaunchDependent(QuantizeHeldKernel<T, kSlots>, GridFor(args.m, 1), dim3(kFp8RowThreads), 0,
                         stream, args, to);
}

template <class T>
cudaError_t QuantizeHeld(const ActivationArgs& args, const Fp8Rows& to, cudaStream_t stream) {
  constexpr int32_t kStep = kFp8RowThreads * 8;
  if (args.k <= 2 * kStep) return QuantizeSlots<T, 2>(args, to, stream);
  if (args.k <= 4 * kStep) return QuantizeSlots<T, 4>(args, to, stream);
  return QuantizeSlots<T, 8>(args, to, stream);
}

template <class Code>
cudaError_t QuantizeTo(const ActivationArgs& args, const Fp8Rows& to, cudaStream_t stream) {
  switch (args.x_type) {
    case Element::kF32:
      return Quantize<float, Code>(args, to, stream);
    case Element::kF16:
      return Quantize<__half, Code>(args, to, stream);
    case Element::kBF16:
      return Quantize<__nv_bfloat16, Code>(args, to, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

int RowsOfTile(int64_t m) {
  int rows = 16;
  while (rows < 128 && rows < m) rows *= 2;
  return rows;
}

int64_t TilesOf(int64_t m, int64_t n) {
  const int64_t rows = RowsOfTile(m);
  return (m + rows - 1) / rows * ((n + kFp8GemmOutputs - 1) / kFp8GemmOutputs);
}

// Parts of K that run side by side where there are fewer tiles than multiprocessors.
int SplitsOf(int64_t m, int64_t n, int64_t units, int multiprocessors) {
  constexpr int64_t kMinSteps = 4;
  const int64_t wanted = std::min(multiprocessors / TilesOf(m, n), units / kMinSteps);
  return static_cast<int>(std::max<int64_t>(1, wanted));
}

// Adds the sums of the splits.
cudaError_t FinishSplits(const Fp8GemmArgs& args, bool blocks, cudaStream_t stream) {
  FinishArgs finish;
  finish.sums = args.partials;
  finish.split_stride = args.m * args.n;
  finish.splits = args.splits;
  finish.m = args.m;
  finish.n = args.n;
  if (!blocks) {
    finish.x_scales = args.x_scales;
    finish.x_stride = args.x_row_stride;
    finish.w_scales = args.w_scales;
    finish.rows_per_scale = args.rows_per_scale;
    finish.w_stride = args.groups;
  }
  finish.bias = args.bias;
  finish.y = args.y;
  finish.y_type = args.y_type;
  finish.y_stride = args.y_stride;
  return LaunchFinish(finish, stream);
}

template <int kRows, bool kBlocks>
cudaError_t Launch(const WeightView& view, const Fp8GemmLaunch& launch, cudaStream_t stream) {
  using Shape = Fp8GemmShape<kRows, kBlocks>;
  CUtensorMap w_map;
  CUtensorMap x_map;
  const int64_t weight_rows = PaddedRows(view.n);
  const int64_t weight_row_bytes = int64_t{view.units} * kUnitInputs;
  cudaError_t error = MakeRowsMap(view.codes, weight_rows, weight_row_bytes, weight_row_bytes,
                                  kFp8GemmOutputs, w_map);
  if (error != cudaSuccess) return error;
  error = MakeRowsMap(launch.codes, launch.m, view.k, launch.codes_stride, kRows, x_map);
  if (error != cudaSuccess) return error;
  Fp8GemmArgs args;
  args.m = launch.m;
  args.n = view.n;
  args.steps = view.units;
  args.x_scales = launch.x_scales;
  args.x_row_stride = launch.x_row_stride;
  args.x_step_stride = launch.x_step_stride;
  args.w_scales = static_cast<const float*>(view.scales);
  args.rows_per_scale = view.rows_per_scale;
  args.groups = view.groups;
  args.group_steps = std::max(1, view.group_size / kFp8GemmInputs);
  args.bias = view.bias;
  args.y = launch.y;
  args.y_type = launch.y_type;
  args.y_stride = launch.y_stride;
  const int splits = SplitsOf(launch.m, view.n, view.units, launch.multiprocessors);
  args.split_steps = (view.units + splits - 1) / splits;
  args.splits = (view.units + args.split_steps - 1) / args.split_steps;
  args.partials = launch.partials;
  const auto kernel = Fp8GemmKernel<Shape>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               Shape::kSharedBytes);
  if (error != cudaSuccess) return error;
  const int64_t tiles = TilesOf(launch.m, view.n) * args.splits;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, launch.multiprocessors));
  error = LaunchDependent(kernel, dim3(blocks), dim3(Shape::kThreads), Shape::kSharedBytes, stream,
                          w_map, x_map, args);
  if (error != cudaSuccess || args.splits == 1) return error;
  return FinishSplits(args, kBlocks, stream);
}

template <bool kBlocks>
cudaError_t LaunchRows(const WeightView& view, const Fp8GemmLaunch& launch, cudaStream_t stream) {
  switch (RowsOfTile(launch.m)) {
    case 16:
      return Launch<16, kBlocks>(view, launch, stream);
    case 32:
      return Launch<32, kBlocks>(view, launch, stream);
    case 64:
      return Launch<64, kBlocks>(view, launch, stream);
    default:
      return Launch<128, kBlocks>(view, launch, stream);
  }
}

}  // namespace

cudaError_t LaunchFp8Quantize(const ActivationArgs& args, const Fp8Rows& to, bool bf16,
                              cudaStream_t stream) {
  if (bf16) return QuantizeTo<__nv_bfloat16>(args, to, stream);
  if (CanHold(args)) {
    if (args.x_type == Element::kBF16) return QuantizeHeld<__nv_bfloat16>(args, to, stream);
    if (args.x_type == Element::kF16) return QuantizeHeld<__half>(args, to, stream);
  }
  return QuantizeTo<uint8_t>(args, to, stream);
}

cudaError_t LaunchFp8CopyCodes(const ActivationArgs& args, const Fp8Rows& to, bool bf16,
                               cudaStream_t stream) {
  return LaunchDependent(bf16 ? CopyCodesKernel<__nv_bfloat16> : CopyCodesKernel<uint8_t>,
                         GridFor(args.m * (to.stride / 8), kFp8RowThreads), dim3(kFp8RowThreads), 0,
                         stream, args, to);
}

cudaError_t LaunchFp8CopyScales(const ActivationArgs& args, const Fp8Rows& to,
                                cudaStream_t stream) {
  const dim3 grid = GridFor(args.m * to.places.steps, kFp8RowThreads);
  CopyScalesKernel<<<grid, kFp8RowThreads, 0, stream>>>(args, to);
  return cudaGetLastError();
}

cudaError_t LaunchFinish(const FinishArgs& args, cudaStream_t stream) {
  const uintptr_t four = args.y_type == Element::kF32 ? 16 : 8;
  const bool vector =
      args.n % 4 == 0 && args.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.y) % four == 0;
  const int64_t pieces = (int64_t{args.n} + 3) / 4;
  return LaunchDependent(vector ? FinishKernel<true> : FinishKernel<false>,
                         GridFor((args.m + kFinishRows - 1) / kFinishRows * pieces, kFp8RowThreads),
                         dim3(kFp8RowThreads), 0, stream, args);
}

int64_t Fp8GemmPartialBytes(int64_t m, int multiprocessors) {
  return int64_t{multiprocessors} * RowsOfTile(m) * kFp8GemmOutputs * int64_t{sizeof(float)};
}

cudaError_t LaunchFp8Gemm(const WeightView& view, const Fp8GemmLaunch& launch,
                          cudaStream_t stream) {
  return launch.blocks ? LaunchRows<true>(view, launch, stream)
                       : LaunchRows<false>(view, launch, stream);
}

}  // namespace nibble::cuda
