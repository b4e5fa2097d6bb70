#include "kernels/cuda/launch/dequantize.h"

#include "kernels/cuda/device/dequantize.cuh"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {
namespace {

struct Request {
  int32_t row_begin;
  int32_t rows;
  void* out;
  int64_t out_stride;
  int32_t out_cols;
};

template <class Codec, class Out>
cudaError_t Launch(const WeightView& view, const Request& request, cudaStream_t stream) {
  const int64_t first_tile = request.row_begin / kUnitRows;
  const int64_t last_tile = (int64_t{request.row_begin} + request.rows - 1) / kUnitRows;
  const int64_t units = (int64_t{request.out_cols} + kUnitInputs - 1) / kUnitInputs;
  const dim3 grid = GridFor((last_tile - first_tile + 1) * units, kDequantizeWarps);
  DequantizeKernel<Codec, Out><<<grid, kDequantizeWarps * 32, 0, stream>>>(
      view, request.row_begin, request.rows, static_cast<Out*>(request.out), request.out_stride,
      request.out_cols);
  return cudaGetLastError();
}

template <class Codec>
cudaError_t LaunchCodec(const WeightView& view, const Request& request, Element out_type,
                        cudaStream_t stream) {
  switch (out_type) {
    case Element::kF32:
      return Launch<Codec, float>(view, request, stream);
    case Element::kF16:
      return Launch<Codec, __half>(view, request, stream);
    case Element::kBF16:
      return Launch<Codec, __nv_bfloat16>(view, request, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchDequantize(const WeightView& view, int32_t row_begin, int32_t rows, void* out,
                             Element out_type, int64_t out_stride, int32_t out_cols,
                             cudaStream_t stream) {
  const Request request{row_begin, rows, out, out_stride, out_cols};
  switch (view.codes_kind) {
    case Codes::kDense:
      return LaunchCodec<DenseCodec>(view, request, out_type, stream);
    case Codes::kTable:
      return LaunchCodec<TableCodec>(view, request, out_type, stream);
    case Codes::kInt4:
      return LaunchCodec<Int4Codec>(view, request, out_type, stream);
    case Codes::kFP8:
      return LaunchCodec<Fp8Codec>(view, request, out_type, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
