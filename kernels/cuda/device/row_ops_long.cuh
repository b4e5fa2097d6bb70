// norm_quant and silu_mul_quant on rows too long for a block's registers: read again in each phase.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_LONG_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_LONG_CUH_

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_ops.cuh"

namespace nibble::cuda {

inline constexpr int kLongRowThreads = 1024;

template <class T>
__device__ inline Eight<T> LoadEight(const T* row, int32_t col, const RowOpArgs& args) {
  return args.vector ? LoadEight<true>(row, col, args.d) : LoadEight<false>(row, col, args.d);
}

template <class T>
__device__ inline void StoreEight(T* row, int32_t col, const RowOpArgs& args, const Eight<T>& v) {
  if (args.vector) return StoreEight<true>(row, col, args.d, v);
  StoreEight<false>(row, col, args.d, v);
}

// What a row op computes before it quantizes. Prepare is called by the whole block, once; Values
// then returns columns col..col+7 however often it is asked.
template <class T>
class LongNormRow {
 public:
  __device__ LongNormRow(const RowOpArgs& args, int64_t row) : args_(args) {
    h_ = static_cast<const T*>(args.x) + row * args.x_stride;
    row_ = row;
  }

  // Stores h = x + residual, where there is one, and sums its squares.
  __device__ void Prepare(float* scratch) {
    const T* residual = static_cast<const T*>(args_.residual) + row_ * args_.residual_stride;
    T* sums = static_cast<T*>(args_.residual_out) + row_ * args_.residual_out_stride;
    float squares[1] = {0.0f};
    for (int32_t col = static_cast<int32_t>(threadIdx.x) * 8; col < args_.d;
         col += kLongRowThreads * 8) {
      Eight<T> h = LoadEight(h_, col, args_);
      if (args_.residual != nullptr) {
        h = Add(h, LoadEight(residual, col, args_));
        StoreEight(sums, col, args_, h);
      }
      float v[8];
      Widen(h, v);
      squares[0] = __fadd_rn(squares[0], SumOfSquares(v));
    }
    if (args_.residual != nullptr) h_ = sums;
    rsqrt_ =
        InverseRms(BlockSum(squares, scratch), Divider(static_cast<float>(args_.d)), args_.epsilon);
  }

  __device__ Eight<T> Values(int32_t col) const {
    float gamma[8];
    if (args_.vector) {
      LoadGamma<true>(args_, col, gamma);
    } else {
      LoadGamma<false>(args_, col, gamma);
    }
    Eight<T> v = Normalize(LoadEight(h_, col, args_), gamma, rsqrt_);
    ClearPastEnd(v, col, args_.d);
    return v;
  }

 private:
  const RowOpArgs& args_;
  int64_t row_;
  const T* h_;
  float rsqrt_ = 0.0f;
};

template <class T>
class LongSiluMulRow {
 public:
  __device__ LongSiluMulRow(const RowOpArgs& args, int64_t row) : args_(args) {
    gate_ = static_cast<const T*>(args.x) + row * args.x_stride;
  }
  __device__ void Prepare(float*) {}
  __device__ Eight<T> Values(int32_t col) const {
    return SiluMul(LoadEight(gate_, col, args_), LoadEight(gate_ + args_.d, col, args_));
  }

 private:
  const RowOpArgs& args_;
  const T* gate_;
};

template <class T, template <class> class Row>
__global__ void __launch_bounds__(kLongRowThreads)
    LongRowKernel(const __grid_constant__ RowOpArgs args) {
  WaitForDependencies();
  __shared__ __align__(16) float sums[kMaxWarps + 4];
  __shared__ uint32_t maxima[kMaxWarps];
  const int64_t row = blockIdx.x;
  constexpr int32_t kStep = kLongRowThreads * 8;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 8;
  Row<T> source(args, row);
  source.Prepare(sums);
  const bool int8 = args.y_type == Element::kI8;
  uint32_t largest = 0;
  if (args.quant == Quant::kPerToken) {
    for (int32_t col = first; col < args.d; col += kStep) {
      largest = max(largest, LargestMagnitude(source.Values(col)));
    }
    largest = BlockMax(largest, maxima);
  }
  // Warps stay whole for the shuffles of per-group scales.
  for (int32_t col = first; col - first % 256 < args.d; col += kStep) {
    Eight<T> v = {};
    if (col < args.d) v = source.Values(col);
    if (args.quant == Quant::kNone) {
      StoreEight(static_cast<T*>(args.y) + row * args.y_stride, col, args, v);
      continue;
    }
    if (args.quant != Quant::kPerToken) largest = LargestMagnitude(v);
    if (args.quant == Quant::kPerGroup) largest = GroupMax(largest);
    const float amax = MagnitudeToFloat<T>(largest);
    const Divider divide(args.quant == Quant::kStatic ? args.static_scale
                                                      : DynamicScale(amax, int8));
    if (args.vector) {
      StoreCodes<true>(args, row, col, v, divide, amax);
    } else {
      StoreCodes<false>(args, row, col, v, divide, amax);
    }
  }
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ROW_OPS_LONG_CUH_
