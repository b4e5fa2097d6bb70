// Problems to select kernels for.
#ifndef NIBBLE_TESTS_UNIT_KERNELS_CORE_PROBLEMS_H_
#define NIBBLE_TESTS_UNIT_KERNELS_CORE_PROBLEMS_H_

#include <cstdint>

#include "nibble/selector.h"

namespace nibble {

inline WeightSpec Spec(Format format, int64_t n, int64_t k) {
  WeightSpec spec;
  spec.format = format;
  spec.n = n;
  spec.k = k;
  return spec;
}

inline Problem Matmul(const WeightSpec& weight, int64_t m) {
  Problem problem;
  problem.weight = weight;
  problem.m = m;
  return problem;
}

inline Problem RowOp(Op op, int64_t m, int64_t d) {
  Problem problem;
  problem.op = op;
  problem.m = m;
  problem.d = d;
  return problem;
}

}  // namespace nibble

#endif  // NIBBLE_TESTS_UNIT_KERNELS_CORE_PROBLEMS_H_
