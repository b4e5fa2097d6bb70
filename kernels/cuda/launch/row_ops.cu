#include "kernels/cuda/launch/row_ops.h"

#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {
namespace {

// Threads and register slots of a row of d columns: a function of d alone, and with it every sum's
// order.
template <class T, template <class> class Row>
cudaError_t LaunchRows(const RowOpArgs& args, cudaStream_t stream) {
  const dim3 grid = GridFor(args.m, 1);
  const int32_t eights = (args.d + 7) / 8;
  if (eights <= 512) {
    const int threads = (eights + 31) / 32 * 32;
    RowOpKernel<T, Row, 1><<<grid, threads, 0, stream>>>(args);
  } else if (eights <= 4 * 1024) {
    const int threads = (eights + 127) / 128 * 32;
    RowOpKernel<T, Row, 4><<<grid, threads, 0, stream>>>(args);
  } else {
    RowOpKernel<T, Row, 0><<<grid, 1024, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <template <class> class Row>
cudaError_t LaunchTyped(const RowOpArgs& args, Element type, cudaStream_t stream) {
  switch (type) {
    case Element::kF32:
      return LaunchRows<float, Row>(args, stream);
    case Element::kF16:
      return LaunchRows<__half, Row>(args, stream);
    case Element::kBF16:
      return LaunchRows<__nv_bfloat16, Row>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchNormQuant(const RowOpArgs& args, Element type, cudaStream_t stream) {
  return LaunchTyped<NormRow>(args, type, stream);
}

cudaError_t LaunchSiluMulQuant(const RowOpArgs& args, Element type, cudaStream_t stream) {
  return LaunchTyped<SiluMulRow>(args, type, stream);
}

}  // namespace nibble::cuda
