// The quantizers behind Quantize. `matrix` is a checked, finite [n, k] view and `spec` a valid spec
// of the same n and k, with its format. Blocks, rows and tiles are independent of each other, so
// that their loops can be shared out to threads.
#ifndef NIBBLE_CORE_QUANTIZE_FORMATS_H_
#define NIBBLE_CORE_QUANTIZE_FORMATS_H_

#include "nibble/quantize.h"

namespace nibble::core {

// kNF4 and kFP4.
StatusOr<CanonicalWeight> QuantizeTable(const ConstMatrixView& matrix, const WeightSpec& spec);
StatusOr<CanonicalWeight> QuantizeInt4(const ConstMatrixView& matrix, const WeightSpec& spec);
StatusOr<CanonicalWeight> QuantizeFP8(const ConstMatrixView& matrix, const WeightSpec& spec);

}  // namespace nibble::core

#endif  // NIBBLE_CORE_QUANTIZE_FORMATS_H_
