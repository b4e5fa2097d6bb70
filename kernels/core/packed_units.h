// Which weights the CUDA backend's tensor-core kernels read straight from their packed units of 16
// rows x 128 inputs: a pure function of the spec, so that the selector can tell.
#ifndef NIBBLE_KERNELS_CORE_PACKED_UNITS_H_
#define NIBBLE_KERNELS_CORE_PACKED_UNITS_H_

#include <string_view>

#include "nibble/format.h"
#include "nibble/selector.h"

namespace nibble::core {

inline constexpr int kHopper = 90;  // the compute capability whose wgmma later devices lack

// Whether codes are indices of a table of 16 values.
constexpr bool HasTable(Format format) { return format == Format::kNF4 || format == Format::kFP4; }

// Scales that a row has in each 128 inputs: 1 (one group covers whole units), 2 or 4; 0 where
// groups and units do not fit each other.
int ScalesPerUnit(const WeightSpec& spec);

// Whether a scale of a matmul's FP8 weight or of its activations changes along K.
bool HasBlockScales(const Problem& problem);

// Whether cuda_gemv's weights stream through shared memory on a device of this compute capability:
// from 9.0 on, but for 12, which lends a block 99 KB of it where the others lend 227.
bool StreamsWeights(int compute_capability);

// How K of a weight is divided where a row's bits must not depend on the other rows (the kernels
// cuda_gemv_chain and cuda_wgmma_chain): `count` chains, each of which adds its units in turn.
// of_half: so many of each half of K, which the half's units are dealt to; 0: they are equal parts.
struct Chains {
  int count = 1;
  int of_half = 0;
};
Chains ChainsOf(const WeightSpec& spec);

// Whether the kernels of chains take the weight on a device of this compute capability, of some
// number of rows of 16-bit x: where bits must not depend on the rows, cuda_gemv never has it then.
bool HasChainKernels(const WeightSpec& spec, int compute_capability);

// Whether the CUDA matmul kernel `kernel` can run `problem` on a device of this compute capability.
// cuda_gemm_f32 runs every one.
bool CudaKernelFits(const Problem& problem, std::string_view kernel, int compute_capability);

}  // namespace nibble::core

#endif  // NIBBLE_KERNELS_CORE_PACKED_UNITS_H_
