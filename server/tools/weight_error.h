// How far a quantized weight is from the original.
#ifndef NIBBLE_SERVER_TOOLS_WEIGHT_ERROR_H_
#define NIBBLE_SERVER_TOOLS_WEIGHT_ERROR_H_

#include "nibble/weight.h"

namespace nibble::tools {

struct WeightError {
  double relative = 0;  // Frobenius norm of the difference over that of the original; 0 for zeros
  double largest = 0;   // magnitude
};

// Compares the exactly decoded values. `dense` is kDense of the same [N, K]. The result does not
// depend on `threads` (0: as many as the machine runs at once).
StatusOr<WeightError> MeasureError(const CanonicalWeight& dense, const CanonicalWeight& quantized,
                                   int threads);

}  // namespace nibble::tools

#endif  // NIBBLE_SERVER_TOOLS_WEIGHT_ERROR_H_
