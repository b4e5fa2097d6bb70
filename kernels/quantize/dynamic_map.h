// The 8-bit signed dynamic map that nested NF4 and FP4 weights store their absmax with.
#ifndef NIBBLE_KERNELS_QUANTIZE_DYNAMIC_MAP_H_
#define NIBBLE_KERNELS_QUANTIZE_DYNAMIC_MAP_H_

#include <array>
#include <cstdint>

namespace nibble::quantize {

// 256 ascending values: 0, 1 and, for each decade 10^(e-6), e = 0..6, the midpoints of 2^e equal
// steps from 0.1 to 1 with both signs. There is no -1. Source: bitsandbytes create_dynamic_map.
using DynamicMap = std::array<float, 256>;
const DynamicMap& SignedDynamicMap();

// The code of u in [-1, 1] (what lies outside is clamped): the entry nearest to the multiple of
// 2 / 65535 that is nearest to u, ties to the smaller code. Source: the CPU library of
// bitsandbytes, which looks codes up in a table of 65,536.
uint8_t DynamicCode(float u);

}  // namespace nibble::quantize

#endif  // NIBBLE_KERNELS_QUANTIZE_DYNAMIC_MAP_H_
