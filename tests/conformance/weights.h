// Canonical weights for the suite: every format and variant, with random codes and scales, so that
// every code and zero point occurs.
#ifndef NIBBLE_TESTS_CONFORMANCE_WEIGHTS_H_
#define NIBBLE_TESTS_CONFORMANCE_WEIGHTS_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "nibble/weight.h"
#include "tests/conformance/random_data.h"

namespace nibble::conformance {

// A format with its parameters; n and k are filled in by each test.
struct Variant {
  std::string name;
  WeightSpec spec;
  bool whole_column = false;  // group_size is k

  WeightSpec SpecOf(int64_t n, int64_t k) const;
};

std::vector<Variant> AllVariants();
std::vector<Variant> Fp8Variants();

inline std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}

// Codes are uniform (FP8 without NaN), scales positive and of one or two binades, zero points
// uniform, the group index a permutation of its groups, the bias random.
CanonicalWeight RandomWeight(const WeightSpec& spec, uint64_t seed);

// The decoded weight [N, K] as binary32, by DecodeReference.
HostMatrix Decode(const CanonicalWeight& weight);

HostBytes ToHostBytes(const HostMatrix& matrix);

}  // namespace nibble::conformance

#endif  // NIBBLE_TESTS_CONFORMANCE_WEIGHTS_H_
