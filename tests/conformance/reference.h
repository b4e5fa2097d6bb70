// What the ops mean, one element at a time on the host: the float64 oracle of a matmul, and the
// unfused sequences of the row ops. Independent of every backend.
#ifndef NIBBLE_TESTS_CONFORMANCE_REFERENCE_H_
#define NIBBLE_TESTS_CONFORMANCE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "nibble/ops.h"
#include "tests/conformance/random_data.h"
#include "tests/conformance/runner.h"

namespace nibble::conformance {

// Codes and scales of the rows of `v`, as OutputQuant defines them. `scales` is [M, ScalesPerRow],
// for kStatic too.
struct QuantizedRows {
  HostMatrix codes;
  HostMatrix scales;
};
QuantizedRows QuantizeReference(const HostMatrix& v, const OutputQuant& quant, DType dtype);

// code * scale, exact in float64. [M, K] row-major.
std::vector<double> DecodeActivations(const QuantizedRows& rows, QuantMode mode);
// Elements of `matrix` in float64.
std::vector<double> ToDoubles(const HostMatrix& matrix);

// y[m][n] = sum_k x[m][k] w[n][k] + bias[n] in float64. `bias` is empty or [1, N].
std::vector<double> MatmulOracle(const std::vector<double>& x, int64_t m, const HostMatrix& w,
                                 const HostMatrix& bias);
std::vector<double> RowNorms(const std::vector<double>& matrix, int64_t rows);

// h = round(x + residual), or x.
HostMatrix AddReference(const HostMatrix& x, const HostMatrix& residual);
// rsqrt(mean(h^2) + epsilon) of one row, the squares summed in 16 lanes.
float RsqrtReference(const HostMatrix& h, int64_t row, float epsilon);
// v of one row, [1, d], from its rsqrt.
HostMatrix NormRowReference(const HostMatrix& h, int64_t row, float rsqrt, const HostMatrix& gamma);

float SiluReference(float gate);

// `value` moved by `ulps` units in its last place, away from 0 for positive ones.
float MoveUlps(float value, int ulps);

}  // namespace nibble::conformance

#endif  // NIBBLE_TESTS_CONFORMANCE_REFERENCE_H_
