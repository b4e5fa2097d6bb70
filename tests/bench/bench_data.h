// Random weights and activations for measurements: never zeros, which run faster than data does.
#ifndef NIBBLE_TESTS_BENCH_BENCH_DATA_H_
#define NIBBLE_TESTS_BENCH_BENCH_DATA_H_

#include <cstdint>

#include "nibble/weight.h"

namespace nibble::bench {

// Uniform in [low, high).
HostBytes RandomFloats(DType dtype, int64_t count, float low, float high, uint64_t seed);

CanonicalWeight RandomWeight(const WeightSpec& spec);

}  // namespace nibble::bench

#endif  // NIBBLE_TESTS_BENCH_BENCH_DATA_H_
