// Quantizing a 16- or 32-bit matrix into a canonical weight, on the host.
#ifndef NIBBLE_QUANTIZE_H_
#define NIBBLE_QUANTIZE_H_

#include "nibble/status.h"
#include "nibble/tensor.h"
#include "nibble/weight.h"

namespace nibble {

// `target` says the format and its parameters (block or group size, nested, zero points, scale
// layout, scale dtype); its n, k, dtype and bias fields are set from `matrix` [N, K] (F32, F16 or
// BF16).
//
//   kDense     copied
//   kNF4, kFP4 bitsandbytes' rule: absmax per block, thresholds at the midpoints, ties to the lower
//   code;
//              nested: 8-bit signed dynamic map, offset = mean of the absmax
//   kInt4      round to nearest, symmetric (amax / 7.5 spread over -8..7) or with zero points
//   (min..max) kFP8       amax / 448 per tensor, channel or block, saturating
//
// A NaN or infinity in `matrix` gives kInvalidArgument with its position.
StatusOr<CanonicalWeight> Quantize(const ConstMatrixView& matrix, const WeightSpec& target);

}  // namespace nibble

#endif  // NIBBLE_QUANTIZE_H_
