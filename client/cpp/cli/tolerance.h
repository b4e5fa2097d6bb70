// How far a product may lie from the exact one, derived in kernels/NUMERICS.md and computed here
// from nothing that the server uses.
#ifndef NIBBLE_CLIENT_CLI_TOLERANCE_H_
#define NIBBLE_CLIENT_CLI_TOLERANCE_H_

#include <cstdint>

#include "nibble/v1/linear.pb.h"

namespace nibble::cli {

// Weights rounded to BF16 on one of the two sides; 0 where both use them as they are.
inline constexpr double kBF16WeightRoundoff = 0x1p-8;

// Largest |y - expected| of an output of type `dtype` with inputs of norms ||x||_2 and ||w||_2 and
// length `k`:
//
//   (8 * 2^-24 sqrt(K) + weight_roundoff) ||x|| ||w|| (1 + eps) + (eps + 2^-24) |expected| + tiny
//
// eps is the unit roundoff of the type (2^-8 BF16, 2^-11 F16, 2^-24 F32), tiny = K 2^-126 + 2^-24
// (F16) or 2^-126 covers subnormals.
double MatmulTolerance(int64_t k, double x_norm, double w_norm, double expected, v1::DType dtype,
                       double weight_roundoff);

// Error over tolerance; infinity where the two cannot be compared. NaN meets NaN, infinity the same
// infinity, and a finite value past the type's range may have become infinity.
double ErrorOverTolerance(double expected, double received, double tolerance, v1::DType dtype);

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_TOLERANCE_H_
