// The quantizers behind Quantize. `matrix` is a checked [n, k] view and `spec` a valid spec of the
// same n and k, with its format. Values that are not finite give a weight of no meaning: the caller
// looks for them where a quantizer has set `finite` to false.
#ifndef NIBBLE_KERNELS_QUANTIZE_FORMATS_H_
#define NIBBLE_KERNELS_QUANTIZE_FORMATS_H_

#include <atomic>

#include "kernels/cpu/thread_pool.h"
#include "nibble/quantize.h"

namespace nibble::quantize {

struct Job {
  const ConstMatrixView& matrix;
  const WeightSpec& spec;
  const QuantizeOptions& options;
  cpu::ThreadPool& pool;
  std::atomic<bool> finite{true};
};

// kNF4 and kFP4.
StatusOr<CanonicalWeight> QuantizeTable(Job& job);
StatusOr<CanonicalWeight> QuantizeInt4(Job& job);
StatusOr<CanonicalWeight> QuantizeFP8(Job& job);

}  // namespace nibble::quantize

#endif  // NIBBLE_KERNELS_QUANTIZE_FORMATS_H_
