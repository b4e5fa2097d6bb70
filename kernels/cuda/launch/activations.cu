#include "kernels/cuda/launch/activations.h"

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {

cudaError_t LaunchWidenActivations(const ActivationArgs& args, float* out, cudaStream_t stream) {
  WidenActivationsKernel<<<GridFor(args.m, 1), kActivationThreads, 0, stream>>>(args, out);
  return cudaGetLastError();
}

namespace {

// A kernel of Columns.
template <class Kernel>
cudaError_t LaunchInOrder(Kernel kernel, const ActivationArgs& args, void* out, int32_t k_padded,
                          cudaStream_t stream) {
  dim3 grid = GridFor(args.m, 1);
  grid.y = GridFor(k_padded / 8, kArrangeThreads).x;
  return LaunchDependent(kernel, grid, dim3(kArrangeThreads), 0, stream,
                         static_cast<const uint16_t*>(args.x), args.x_stride, args.order, args.k,
                         static_cast<uint16_t*>(out), k_padded);
}

template <Columns kColumns>
cudaError_t LaunchArranged(const ActivationArgs& args, void* out, int32_t k_padded,
                           cudaStream_t stream) {
  const bool whole = args.order == nullptr && args.k == k_padded && args.x_stride % 8 == 0 &&
                     reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
  return LaunchInOrder(
      whole ? ArrangeActivationsKernel<true, kColumns> : ArrangeActivationsKernel<false, kColumns>,
      args, out, k_padded, stream);
}

}  // namespace

cudaError_t LaunchPadActivations(const ActivationArgs& args, void* out, int32_t k_padded,
                                 cudaStream_t stream) {
  return LaunchInOrder(ArrangeActivationsKernel<false, Columns::kAsTheyLie>, args, out, k_padded,
                       stream);
}

cudaError_t LaunchArrangeActivations(const ActivationArgs& args, void* out, int32_t k_padded,
                                     bool fp8, cudaStream_t stream) {
  return fp8 ? LaunchArranged<Columns::kOfFp8>(args, out, k_padded, stream)
             : LaunchArranged<Columns::kOf4Bits>(args, out, k_padded, stream);
}

cudaError_t LaunchSplitActivations(const ActivationArgs& args, void* high, void* low,
                                   int32_t k_padded, cudaStream_t stream) {
  const dim3 grid = GridFor(args.m * k_padded, kActivationThreads);
  SplitActivationsKernel<<<grid, kActivationThreads, 0, stream>>>(
      static_cast<const __half*>(args.x), args.x_stride, args.order, args.m, args.k,
      static_cast<__nv_bfloat16*>(high), static_cast<__nv_bfloat16*>(low), k_padded);
  return cudaGetLastError();
}

cudaError_t LaunchBiasAndRound(const float* sums, int64_t sums_stride, const float* bias, int64_t m,
                               int32_t n, void* y, Element y_type, int64_t y_stride,
                               cudaStream_t stream) {
  const dim3 grid = GridFor(m * n, kActivationThreads);
  BiasAndRoundKernel<<<grid, kActivationThreads, 0, stream>>>(sums, sums_stride, bias, m, n, y,
                                                              y_type, y_stride);
  return cudaGetLastError();
}

}  // namespace nibble::cuda
