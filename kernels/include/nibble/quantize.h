// Quantizing a 16- or 32-bit matrix into a canonical weight, on the host.
#ifndef NIBBLE_QUANTIZE_H_
#define NIBBLE_QUANTIZE_H_

#include "nibble/status.h"
#include "nibble/tensor.h"
#include "nibble/weight.h"

namespace nibble {

// `target` says the format and its parameters (block or group size, nested, zero points, scale
// layout, scale dtype); its n, k, dtype and bias fields are set from `matrix` [N, K] (F32, F16 or
// BF16). has_group_index and has_input_scale must be false: both come from calibration data.
//
// Per block of values v; every step is rounded to binary32 unless it says otherwise:
//
//   kDense      copied.
//   kNF4, kFP4  bitsandbytes' rule: a = max |v|, u = v * (1 / a), the code of the nearest table
//               entry by fixed thresholds, ties to the smaller code (FP4: magnitude). A block of
//               zeros has a = 0 and codes 0. nested: offset = mean of the a; per nested block
//               a2 = max |a - offset|, each (a - offset) / a2 becomes the nearest entry of the
//               8-bit signed dynamic map, ties to the smaller code.
//   kInt4       symmetric: scale = amax / 7.5, q = clamp(round(v / scale), -8, 7) + 8. Against
//               amax / 7 or amax / 8 this has the smallest worst error, half a step at both ends.
//               zero points: lo = min(v, 0), hi = max(v, 0), scale = (hi - lo) / 15,
//               zero = round(-lo / scale), q = clamp(round(v / scale) + zero, 0, 15).
//   kFP8        scale = amax / 448 per tensor, channel or block, q = E4M3(v / scale), saturating.
//
// kInt4 and kFP8 round the scale to spec.scale_dtype before codes are computed. A scale is at
// least 2^-100 (F32, BF16) or 2^-24 (F16), so that zeros get the code of zero. A scale too large
// for its dtype gives kInvalidArgument, as does a NaN or infinity in `matrix`, with its position.
StatusOr<CanonicalWeight> Quantize(const ConstMatrixView& matrix, const WeightSpec& target);

}  // namespace nibble

#endif  // NIBBLE_QUANTIZE_H_
