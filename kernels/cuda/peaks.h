// How fast a GPU reads memory and multiplies, measured when it is opened.
#ifndef NIBBLE_KERNELS_CUDA_PEAKS_H_
#define NIBBLE_KERNELS_CUDA_PEAKS_H_

#include <memory>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/context.h"

namespace nibble::cuda {

struct Peaks {
  double bandwidth_bytes_per_second = 0;  // read
  double tensor_flops_per_second = 0;     // of a large BF16 matmul by cuBLASLt
};

// Tens of milliseconds, and at most 1 GiB of memory at a time, all of it free again after. What
// cannot be measured, for want of memory above all, is worked out from the device's clocks; 0 where
// those are not told either. An error that ends the device shows in its health.
// A tensor peak that is known (not 0) is not measured: loading cuBLASLt's kernel takes most of the
// time.
Peaks MeasurePeaks(const std::shared_ptr<Context>& context, Blas& blas,
                   double known_tensor_flops_per_second);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_PEAKS_H_
