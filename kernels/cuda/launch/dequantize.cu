#include "kernels/cuda/launch/dequantize.h"

#include "kernels/cuda/device/dequantize.cuh"
#include "kernels/cuda/device/dequantize_units.cuh"
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

// Tiles of 16 rows that hold the rows asked for.
int64_t Tiles(const Request& request) {
  const int64_t first = request.row_begin / kUnitRows;
  const int64_t last = (int64_t{request.row_begin} + request.rows - 1) / kUnitRows;
  return last - first + 1;
}

template <class Codec, class Out>
cudaError_t Launch(const WeightView& view, const Request& request, cudaStream_t stream) {
  const int64_t units = (int64_t{request.out_cols} + kUnitInputs - 1) / kUnitInputs;
  const dim3 grid = GridFor(Tiles(request) * units, kDequantizeWarps);
  DequantizeKernel<Codec, Out><<<grid, kDequantizeWarps * 32, 0, stream>>>(
      view, request.row_begin, request.rows, static_cast<Out*>(request.out), request.out_stride,
      request.out_cols);
  return cudaGetLastError();
}

// What DequantizeUnitsKernel asks for.
bool AreWholeWords(const WeightView& view, const Request& request, int64_t element_bytes) {
  const bool tiled_or_grid =
      view.scale_kind == ScaleKind::kTiled || view.scale_kind == ScaleKind::kGrid;
  return tiled_or_grid && view.group_index == nullptr &&
         (view.group_size % 8 == 0 || view.group_size >= view.k) && view.k % 8 == 0 &&
         request.out_cols % 8 == 0 && request.out_stride * element_bytes % 16 == 0 &&
         reinterpret_cast<uintptr_t>(request.out) % 16 == 0;
}

template <class Units, class Out>
cudaError_t LaunchUnits(const WeightView& view, const Request& request, cudaStream_t stream) {
  // Each thread writes 16 bytes of two rows a step.
  const int64_t units = (int64_t{request.out_cols} + kUnitInputs - 1) / kUnitInputs;
  const int64_t threads = Tiles(request) * units * kUnitRows * kUnitInputs / 2 *
                          static_cast<int64_t>(sizeof(Out)) / 16 / kDequantizeSteps<Units, Out>;
  DequantizeUnitsKernel<Units, Out>
      <<<GridFor(threads, kDequantizeUnitsThreads), kDequantizeUnitsThreads, 0, stream>>>(
          view, request.row_begin, request.rows, static_cast<Out*>(request.out), request.out_stride,
          request.out_cols);
  return cudaGetLastError();
}

template <class Codec, class Units, class Out>
cudaError_t LaunchFastest(const WeightView& view, const Request& request, cudaStream_t stream) {
  return AreWholeWords(view, request, sizeof(Out)) ? LaunchUnits<Units, Out>(view, request, stream)
                                                   : Launch<Codec, Out>(view, request, stream);
}

template <class Codec, class Units>
cudaError_t LaunchQuantized(const WeightView& view, const Request& request, Element out_type,
                            cudaStream_t stream) {
  switch (out_type) {
    case Element::kF32:
      return LaunchFastest<Codec, Units, float>(view, request, stream);
    case Element::kF16:
      return LaunchFastest<Codec, Units, __half>(view, request, stream);
    case Element::kBF16:
      return LaunchFastest<Codec, Units, __nv_bfloat16>(view, request, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchDense(const WeightView& view, const Request& request, Element out_type,
                        cudaStream_t stream) {
  switch (out_type) {
    case Element::kF32:
      return Launch<DenseCodec, float>(view, request, stream);
    case Element::kF16:
      return Launch<DenseCodec, __half>(view, request, stream);
    case Element::kBF16:
      return Launch<DenseCodec, __nv_bfloat16>(view, request, stream);
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
      return LaunchDense(view, request, out_type, stream);
    case Codes::kTable:
      return LaunchQuantized<TableCodec, TableUnits>(view, request, out_type, stream);
    case Codes::kInt4:
      return LaunchQuantized<Int4Codec, Int4Units>(view, request, out_type, stream);
    case Codes::kFP8:
      return LaunchQuantized<Fp8Codec, Fp8Units>(view, request, out_type, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
