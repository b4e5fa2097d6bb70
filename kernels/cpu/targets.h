// The instruction sets that the dispatched translation units are compiled for: scalar, SSE4, AVX2
// and AVX-512 on x86, NEON on Arm. Included before any Highway header.
#ifndef NIBBLE_KERNELS_CPU_TARGETS_H_
#define NIBBLE_KERNELS_CPU_TARGETS_H_

// SSSE3 and the Ice Lake variant add compile time and no speed here; vectors of SVE have no fixed
// size, so they cannot be kept in arrays of accumulators.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#endif  // NIBBLE_KERNELS_CPU_TARGETS_H_
