// The fused quantizing operations, recomputed on this host step by step as the unfused ones would
// run.
#ifndef NIBBLE_CLIENT_CLI_QUANT_CHECK_H_
#define NIBBLE_CLIENT_CLI_QUANT_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/cli/session.h"
#include "client/cpp/cli/tensor_file.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::cli {

// A matrix of binary32 values that `dtype` holds exactly.
struct Rounded {
  int64_t rows = 0;
  int64_t cols = 0;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<float> values;
};

// h = round(x + residual), and v = round(round(h * rsqrt(mean(h^2) + epsilon)) * gamma), each round
// to the type of x; the mean is summed in binary64. `residual` may be null.
struct NormReference {
  Rounded h;
  Rounded v;
};
absl::StatusOr<NormReference> ReferenceNorm(const v1::Tensor& x, const v1::Tensor* residual,
                                            const std::vector<float>& gamma, float epsilon);

// v = round(round(silu(gate)) * up) of x = [gate | up].
absl::StatusOr<Rounded> ReferenceSiluMul(const v1::Tensor& x);

// Scale of a group whose largest magnitude is `amax`: max(amax / top, 2^-100), top = 448 (E4M3) or
// 127 (I8).
float DynamicScale(float amax, v1::DType code);

// What the product sees of an x that the server quantizes to E4M3: code * scale of every element.
// `static_scale` counts for QUANT_MODE_STATIC alone.
Matrix QuantizedActivations(const Matrix& x, v1::QuantMode mode, float static_scale);

// The comparison of quantized rows with v. rsqrt, exp and the order of a sum may differ in the last
// place. That moves the first rounding by a step of x's type where it lay between two, which is a
// step or two of v, since a product's steps may be half as large. So scales must agree to 1e-6 of
// themselves, or else be what a neighbour of the group's largest v gives, two steps at most; codes
// are those of v over the received scale, or one step beside; unquantized 16-bit values are v, or
// two steps beside at most. At most 0.1 % of the scales and codes and 1 % of the values (at least
// one) may lie beside. Unquantized F32 may differ by 1e-5 of itself. Rows of v with a NaN or an
// infinity are left out and counted.
struct QuantReport {
  int64_t rows = 0;
  int64_t compared = 0;
  int64_t one_step = 0;  // beside the expected one
  int64_t allowed = 0;   // how many of those are
  int64_t wrong = 0;     // farther off
  int64_t scales = 0;
  int64_t scales_one_step = 0;
  int64_t scales_wrong = 0;
  double worst_scale_error = 0.0;  // relative, of the scales that agree
  int64_t rows_left_out = 0;
  std::string first_wrong;

  bool ok() const;
  std::string Text() const;
  Json ToJson() const;
};
absl::StatusOr<QuantReport> CheckQuantized(const Rounded& v, const v1::OutputQuant& quant,
                                           const v1::Tensor& y, const v1::Tensor& scales);

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_QUANT_CHECK_H_
