// 4-bit codes from their canonical layout, or from a source of them, to the CPU backend's.
#ifndef NIBBLE_KERNELS_CPU_PACK_CODES_H_
#define NIBBLE_KERNELS_CPU_PACK_CODES_H_

#include <cstdint>

#include "kernels/cpu/packed_weight.h"
#include "nibble/weight.h"

namespace nibble::cpu {

// Fills `to`, packed.spec.n rows of packed.row_bytes, aligned to 16 bytes. packed.columns is set
// already. Throws std::bad_alloc.
void PackCodes(const CanonicalWeight& weight, const PackedWeight& packed, uint8_t* to);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_PACK_CODES_H_
