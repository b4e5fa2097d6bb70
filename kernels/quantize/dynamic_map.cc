#include "kernels/quantize/dynamic_map.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble::quantize {
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

constexpr float kLastCell = 65535.0f;

// The code of each cell's centre.
std::vector<uint8_t> BuildCodes() {
  const DynamicMap& map = SignedDynamicMap();
  std::vector<uint8_t> codes;
  size_t code = 0;
  for (float cell = 0.0f; cell <= kLastCell; cell += 1.0f) {
    const float centre = 2.0f * cell / kLastCell - 1.0f;
    while (code < 255 && centre > (map[code] + map[code + 1]) * 0.5f) ++code;
    codes.push_back(static_cast<uint8_t>(code));
  }
  return codes;
}

}  // namespace

const DynamicMap& SignedDynamicMap() {
  static const DynamicMap map = Build();
  return map;
}

uint8_t DynamicCode(float u) {
  static const std::vector<uint8_t> codes = BuildCodes();
  const float clamped = u > -1.0f ? std::min(u, 1.0f) : -1.0f;  // NaN too
  return codes[static_cast<size_t>((clamped + 1.0f) * 0.5f * kLastCell + 0.5f)];
}

}  // namespace nibble::quantize
