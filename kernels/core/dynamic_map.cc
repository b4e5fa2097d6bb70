#include "kernels/core/dynamic_map.h"

#include <algorithm>
#include <cmath>

namespace nibble::core {
namespace {

constexpr int kDecades = 7;
constexpr float kDecade[kDecades] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};

// Boundary j of n equal steps from 0.1 to 1. Counted from the nearer end with a fused
// multiply-add, as the linspace of the library that wrote the known checkpoints does: separate
// rounding changes 42 entries of the map by one unit in the last place.
float Boundary(int j, int n) {
  constexpr float kLow = 0.1f;
  const float step = (1.0f - kLow) / static_cast<float>(n);
  return j < (n + 1) / 2 ? std::fma(step, static_cast<float>(j), kLow)
                         : std::fma(-step, static_cast<float>(n - j), 1.0f);
}

DynamicMap Build() {
  DynamicMap map{};
  size_t next = 0;
  for (int e = 0; e < kDecades; ++e) {
    const int n = 1 << e;
    for (int j = 0; j < n; ++j) {
      const float midpoint = (Boundary(j, n) + Boundary(j + 1, n)) / 2.0f;
      map[next++] = kDecade[e] * midpoint;
      map[next++] = -(kDecade[e] * midpoint);
    }
  }
  map[next++] = 0.0f;
  map[next++] = 1.0f;
  std::sort(map.begin(), map.end());
  return map;
}

}  // namespace

const DynamicMap& SignedDynamicMap() {
  static const DynamicMap map = Build();
  return map;
}

uint8_t NearestEntry(const DynamicMap& map, float value) {
  const auto above = std::lower_bound(map.begin(), map.end(), value);
  if (above == map.begin()) return 0;
  const auto index = static_cast<uint8_t>(above - map.begin() - 1);
  if (above == map.end()) return index;
  const double to_below = static_cast<double>(value) - map[index];
  const double to_above = static_cast<double>(*above) - value;
  return to_below <= to_above ? index : static_cast<uint8_t>(index + 1);
}

}  // namespace nibble::core
