// Arrays of any element type to and from binary32, by the fastest instruction set of the machine.
// Bit for bit what LoadAsFloat and StoreFromFloat of nibble/numeric.h do one element at a time.
#ifndef NIBBLE_KERNELS_CPU_CONVERT_H_
#define NIBBLE_KERNELS_CPU_CONVERT_H_

#include <cstdint>

#include "nibble/tensor.h"

namespace nibble::cpu {

// dst[i] = element i of the array of `dtype` at `src`, which need not be aligned; i in [0, count).
void LoadFloats(const void* src, DType dtype, int64_t count, float* dst);

// Element i of the array of `dtype` at `dst` = src[i] rounded once to nearest even; F8_E4M3 and I8
// saturate, a NaN becomes I8 0. `dst` need not be aligned.
void StoreFloats(const float* src, int64_t count, DType dtype, void* dst);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_CONVERT_H_
