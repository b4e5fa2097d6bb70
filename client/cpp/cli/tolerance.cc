#include "client/cpp/cli/tolerance.h"

#include <cmath>
#include <limits>

namespace nibble::cli {
namespace {

constexpr double kAccumulatorRoundoff = 0x1p-24;
constexpr double kDeviations = 8.0;

double OutputRoundoff(v1::DType dtype) {
  if (dtype == v1::DTYPE_BF16) return 0x1p-8;
  return dtype == v1::DTYPE_F16 ? 0x1p-11 : 0x1p-24;
}

// The magnitude from which rounding to `dtype` may give infinity.
double Overflow(v1::DType dtype) {
  if (dtype == v1::DTYPE_F16) return 65520.0;
  return dtype == v1::DTYPE_BF16 ? 0x1.FFp127 : 0x1.FFFFFFp127;
}

}  // namespace

double MatmulTolerance(int64_t k, double x_norm, double w_norm, double expected, v1::DType dtype,
                       double weight_roundoff) {
  const auto inputs = static_cast<double>(k);
  const double eps = OutputRoundoff(dtype);
  const double product =
      (kDeviations * kAccumulatorRoundoff * std::sqrt(inputs) + weight_roundoff) * x_norm * w_norm;
  const double tiny = inputs * 0x1p-126 + (dtype == v1::DTYPE_F16 ? 0x1p-24 : 0x1p-126);
  return product * (1.0 + eps) + (eps + kAccumulatorRoundoff) * std::fabs(expected) + tiny;
}

double ErrorOverTolerance(double expected, double received, double tolerance, v1::DType dtype) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(expected) || std::isnan(received)) {
    return std::isnan(expected) && std::isnan(received) ? 0.0 : kWrong;
  }
  if (std::isinf(expected)) return expected == received ? 0.0 : kWrong;
  if (std::isinf(received)) {
    return std::fabs(expected) + tolerance >= Overflow(dtype) &&
                   std::signbit(expected) == std::signbit(received)
               ? 0.0
               : kWrong;
  }
  return std::isfinite(tolerance) ? std::fabs(expected - received) / tolerance : kWrong;
}

}  // namespace nibble::cli
