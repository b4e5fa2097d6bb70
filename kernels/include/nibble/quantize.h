// Quantizing a 16- or 32-bit matrix into a canonical weight, on the host.
#ifndef NIBBLE_QUANTIZE_H_
#define NIBBLE_QUANTIZE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "nibble/status.h"
#include "nibble/tensor.h"
#include "nibble/weight.h"

namespace nibble {

struct QuantizeOptions {
  // Threads that share the work, the caller included; 0: as many as the machine runs at once. The
  // result is the same bits for any number.
  int threads = 0;
  // kInt4: per group, tries shrinking the range of the values in steps of 2 % down to half and
  // takes the scale (and zero point) of least squared error, the widest range among equals.
  // Several times slower.
  bool search_scale = false;
};

// `target` says the format and its parameters (block or group size, nested, zero points, scale
// layout, scale dtype); its n, k, dtype and bias fields are set from `matrix` [N, K] (F32, F16 or
// BF16). has_group_index and has_input_scale must be false: both come from calibration data.
//
// Per block of values v; every step is rounded to binary32 unless it says otherwise:
//
//   kDense      copied.
//   kNF4, kFP4  the codes of bitsandbytes' CPU backend (0.50): a = max |v|, d = max(a, 1e-38),
//               u = v * (1 / d), or v / d in a partial last block, which also stores d for a. The
//               code is that of the table's entries in ascending order after as many midpoints of
//               neighbours, (t + t') / 2, as u exceeds: ties go to the lower value. FP4 has two
//               zeros: code 0 up to u = 0, code 8 above. nested: offset = mean of the a, exact and
//               rounded once; per nested block a2 = max |a - offset|, u = (a - offset) * (1 / a2),
//               and the code of u is looked up by its nearest multiple of 2 / 65535: the nearest
//               entry of the 8-bit signed dynamic map, ties to the smaller code. Code 0 where a2 is
//               0.
//   kInt4       symmetric: scale = amax / 7.5, q = clamp(round(v / scale), -8, 7) + 8. Against
//               amax / 7 or amax / 8 this has the smallest worst error, half a step at both ends.
//               zero points: lo = min(v, 0), hi = max(v, 0), scale = (hi - lo) / 15,
//               zero = round(-lo / scale), q = clamp(round(v / scale) + zero, 0, 15).
//   kFP8        scale = amax / 448 per tensor, channel or block, q = E4M3(v / scale), saturating.
//
// kInt4 and kFP8 round the scale to spec.scale_dtype before codes are computed. A scale is at
// least 2^-100 (F32, BF16) or 2^-24 (F16), so that zeros get the code of zero. A scale too large
// for its dtype gives kInvalidArgument, as does a NaN or infinity in `matrix`, with its position.
StatusOr<CanonicalWeight> Quantize(const ConstMatrixView& matrix, const WeightSpec& target,
                                   const QuantizeOptions& options = {});

// The group_size of a target whose groups are whole columns, whatever the matrix.
inline constexpr int64_t kWholeColumn = std::numeric_limits<int64_t>::max();

// What to quantize to, as a whole.
struct QuantizeTarget {
  WeightSpec spec;  // format and parameters; n, k and dtype come from the matrix
  QuantizeOptions options;
};

// The text form of a target: a format and its options, joined by '+'.
//
//   nf4, fp4   block=64 (a power of two from 32 to 4096), nested
//   int4       group=128 (-1: the whole column), zero-points, search
//   fp8        one of tensor, channel, block (128 x 128); tensor where none is given
//
// kInvalidArgument names the option.
StatusOr<QuantizeTarget> ParseQuantizeTarget(std::string_view text);
// "nf4+block=64+nested": ParseQuantizeTarget reads it back. Not for kDense.
std::string ToString(const QuantizeTarget& target);

// `target` for a matrix of [n, k]: a group that is longer than the column is the column.
WeightSpec SpecFor(const QuantizeTarget& target, int64_t n, int64_t k, DType dtype);

}  // namespace nibble

#endif  // NIBBLE_QUANTIZE_H_
