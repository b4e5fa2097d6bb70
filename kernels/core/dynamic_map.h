// The 8-bit signed dynamic map that nested NF4 and FP4 weights store their absmax with.
#ifndef NIBBLE_CORE_DYNAMIC_MAP_H_
#define NIBBLE_CORE_DYNAMIC_MAP_H_

#include <array>
#include <cstdint>

namespace nibble::core {

// 256 ascending values: 0, 1 and, for each decade 10^(e-6), e = 0..6, the midpoints of 2^e equal
// steps from 0.1 to 1 with both signs. There is no -1. Source: bitsandbytes create_dynamic_map.
using DynamicMap = std::array<float, 256>;
const DynamicMap& SignedDynamicMap();

// Index of the entry nearest to `value`; ties to the smaller index.
uint8_t NearestEntry(const DynamicMap& map, float value);

}  // namespace nibble::core

#endif  // NIBBLE_CORE_DYNAMIC_MAP_H_
