#include "tests/bench/bench_data.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "nibble/numeric.h"

namespace nibble::bench {
namespace {

std::vector<std::byte> RandomBytes(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
  return bytes;
}

}  // namespace

HostBytes RandomFloats(DType dtype, int64_t count, float low, float high, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * DTypeBytes(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float unit = static_cast<float>(random() >> 40) * 0x1p-24f;
    StoreFromFloat(bytes.data(), dtype, i, low + (high - low) * unit);
  }
  return HostBytes(std::move(bytes));
}

CanonicalWeight RandomWeight(const WeightSpec& spec) {
  CanonicalWeight weight;
  weight.spec = spec;
  const WeightGeometry geometry = GeometryOf(spec).value();
  // FP8 as the codes of uniform values, which BF16 operands are too.
  weight.codes = spec.format == Format::kFP8
                     ? RandomFloats(DType::kF8E4M3, geometry.code_bytes, -448.0f, 448.0f, 1)
                     : HostBytes(RandomBytes(geometry.code_bytes, 1));
  if (spec.nested) {
    weight.scales = HostBytes(RandomBytes(geometry.scale_count, 2));
    weight.nested_scales = RandomFloats(DType::kF32, geometry.nested_scale_count, 0.01f, 0.02f, 3);
    weight.nested_map = RandomFloats(DType::kF32, 256, -1.0f, 1.0f, 4);
    weight.nested_offset = 0.05f;
  } else {
    const DType dtype = spec.format == Format::kNF4 ? DType::kF32 : spec.scale_dtype;
    weight.scales = RandomFloats(dtype, geometry.scale_count, 0.002f, 0.02f, 5);
  }
  if (spec.has_zero_points) {
    std::vector<std::byte> zeros(static_cast<size_t>(geometry.zero_point_bytes), std::byte{7});
    weight.zero_points = HostBytes(std::move(zeros));
  }
  return weight;
}

}  // namespace nibble::bench
