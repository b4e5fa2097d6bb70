#include "kernels/cuda/launch/row_ops.h"

#include "kernels/cuda/device/row_ops_long.cuh"
#include "kernels/cuda/launch/dependent_launch.h"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {
namespace {

template <class T>
constexpr Element kElementOf = Element::kF32;
template <>
constexpr Element kElementOf<__half> = Element::kF16;
template <>
constexpr Element kElementOf<__nv_bfloat16> = Element::kBF16;

// Few rows are over sooner with many threads a row; many rows keep more bytes in flight with more
// slots a thread. The numbers are of an H200 of 132 multiprocessors, and what they choose between
// differs by a tenth where they err.
constexpr int64_t kRowsOfOneWave = 132;
constexpr int64_t kFewRowsToNorm = 264;
constexpr int64_t kFewRowsOfSilu = 512;

using OneSlotShape = RowShape<1, 512, 1>;
using ShortNormShape = RowShape<2, 256, 5>;
using ShortSiluShape = RowShape<1, 512, 3>;
using FewRowsShape = RowShape<2, 1024, 1>;

struct RowLaunch {
  void (*kernel)(RowOpArgs);
  int threads;
};

template <class Shape>
int ThreadsOf(int32_t d) {
  constexpr int kColumnsOfWarp = 32 * 8 * Shape::kSlots;
  return (d + kColumnsOfWarp - 1) / kColumnsOfWarp * 32;
}

template <class T>
RowLaunch NormLaunch(const RowOpArgs& args) {
  if (args.d > LongestRowShape::kMaxColumns) {
    return {LongRowKernel<T, LongNormRow>, kLongRowThreads};
  }
  const int threads = ThreadsOf<LongestRowShape>(args.d);
  if (!args.vector) return {NormQuantKernel<T, LongestRowShape, false, false>, threads};
  if (args.gamma_type != kElementOf<T>) {
    return {NormQuantKernel<T, LongestRowShape, true, false>, threads};
  }
  if constexpr (sizeof(T) == 2) {
    if (args.d <= OneSlotShape::kMaxColumns && args.m <= kRowsOfOneWave) {
      return {NormQuantKernel<T, OneSlotShape, true, true>, ThreadsOf<OneSlotShape>(args.d)};
    }
    if (args.d <= ShortNormShape::kMaxColumns) {
      return {NormQuantKernel<T, ShortNormShape, true, true>, ThreadsOf<ShortNormShape>(args.d)};
    }
  }
  // Four slots of binary32 are more than a thread's registers.
  const bool few_rows = args.m <= kFewRowsToNorm || sizeof(T) == 4;
  if (few_rows && args.d <= FewRowsShape::kMaxColumns) {
    return {NormQuantKernel<T, FewRowsShape, true, true>, ThreadsOf<FewRowsShape>(args.d)};
  }
  return {NormQuantKernel<T, LongestRowShape, true, true>, threads};
}

template <class T>
RowLaunch SiluLaunch(const RowOpArgs& args) {
  if (args.d > LongestRowShape::kMaxColumns) {
    return {LongRowKernel<T, LongSiluMulRow>, kLongRowThreads};
  }
  const int threads = ThreadsOf<LongestRowShape>(args.d);
  if (!args.vector) return {SiluMulQuantKernel<T, LongestRowShape, false>, threads};
  const bool wide = sizeof(T) == 4;  // four slots of binary32 are more than a thread's registers
  if ((wide || args.m <= kFewRowsOfSilu) && args.d <= ShortSiluShape::kMaxColumns) {
    return {SiluMulQuantKernel<T, ShortSiluShape, true>, ThreadsOf<ShortSiluShape>(args.d)};
  }
  if ((wide || args.m <= kRowsOfOneWave) && args.d <= FewRowsShape::kMaxColumns) {
    return {SiluMulQuantKernel<T, FewRowsShape, true>, ThreadsOf<FewRowsShape>(args.d)};
  }
  return {SiluMulQuantKernel<T, LongestRowShape, true>, threads};
}

cudaError_t Launch(const RowLaunch& launch, const RowOpArgs& args, cudaStream_t stream) {
  return LaunchDependent(launch.kernel, GridFor(args.m, 1), dim3(launch.threads), 0, stream, args);
}

}  // namespace

cudaError_t LaunchNormQuant(const RowOpArgs& args, Element type, cudaStream_t stream) {
  switch (type) {
    case Element::kF32:
      return Launch(NormLaunch<float>(args), args, stream);
    case Element::kF16:
      return Launch(NormLaunch<__half>(args), args, stream);
    case Element::kBF16:
      return Launch(NormLaunch<__nv_bfloat16>(args), args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchSiluMulQuant(const RowOpArgs& args, Element type, cudaStream_t stream) {
  switch (type) {
    case Element::kF32:
      return Launch(SiluLaunch<float>(args), args, stream);
    case Element::kF16:
      return Launch(SiluLaunch<__half>(args), args, stream);
    case Element::kBF16:
      return Launch(SiluLaunch<__nv_bfloat16>(args), args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace nibble::cuda
