// Checks of what a server answered, recomputed on this host from the documented formulas and from
// nothing that the server itself uses.
#ifndef NIBBLE_CLIENT_CLI_CHECK_H_
#define NIBBLE_CLIENT_CLI_CHECK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/cli/session.h"
#include "client/cpp/cli/tensor_file.h"
#include "nibble/v1/linear.pb.h"

namespace nibble::cli {

// Compares y [M, N] with expected values, element by element, within
//
//   (8 * 2^-24 sqrt(K) + 2^-8) ||x|| ||w|| (1 + eps) + (eps + 2^-24) |expected| + tiny
//
// where x and w are the rows of that element, eps is the unit roundoff of y's type (2^-8 BF16,
// 2^-11 F16, 2^-24 F32), 2^-8 allows for weights rounded to BF16 on one of the two sides, and tiny
// = K 2^-126 + 2^-24 (F16) or 2^-126 covers subnormals. kernels/NUMERICS.md derives it.
class MatmulCheck {
 public:
  // `x` [M, K] as it was sent; `x_used` as the product sees it, quantized or the same. `expected`
  // [R, N] holds x W^T + bias for unquantized x; row m of y is compared with row m mod R, moved by
  // (x_used - x) W^T. kInvalidArgument where the shapes do not fit.
  static absl::StatusOr<MatmulCheck> Create(const Matrix& x, const Matrix& x_used,
                                            const v1::Tensor& y, const Matrix& expected);
  // Row n of the decoded weight, K values. Every row once, in any order.
  absl::Status AddWeightRow(int64_t n, std::span<const float> w);

  // All of [M, N] was compared and nothing was out of tolerance.
  bool ok() const { return failures_ == 0 && compared_ == y_.rows * y_.cols; }
  std::string Text() const;
  Json ToJson() const;

 private:
  MatmulCheck() = default;
  void Compare(int64_t row, int64_t col, double expected, double tolerance);

  Matrix x_;
  Matrix x_used_;
  bool moved_ = false;
  std::vector<double> x_norms_;
  Matrix y_;
  v1::DType y_dtype_ = v1::DTYPE_UNSPECIFIED;
  Matrix expected_;

  int64_t compared_ = 0;
  int64_t failures_ = 0;
  // The worst element: largest error over tolerance.
  int64_t worst_row_ = -1;
  int64_t worst_col_ = -1;
  double worst_expected_ = 0.0;
  double worst_received_ = 0.0;
  double worst_tolerance_ = 0.0;
  double worst_ratio_ = -1.0;
};

// Bit-for-bit comparison of rows of a tensor with stored rows of the same type.
class BitCheck {
 public:
  // Stored rows [N, K]; with `allow_signed_zero` -0 and +0 are equal.
  BitCheck(v1::Tensor stored, bool allow_signed_zero);
  // Rows [row_begin, row_begin + rows of `rows`) as received. kInvalidArgument where they do not
  // fit.
  absl::Status AddRows(int64_t row_begin, const v1::Tensor& rows);

  bool ok() const { return mismatches_ == 0 && compared_ > 0; }
  std::string Text() const;
  Json ToJson() const;

 private:
  v1::Tensor stored_;
  bool allow_signed_zero_;
  int64_t compared_ = 0;
  int64_t mismatches_ = 0;
  int64_t first_row_ = -1;
  int64_t first_col_ = -1;
  uint32_t first_expected_ = 0;
  uint32_t first_received_ = 0;
};

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_CHECK_H_
