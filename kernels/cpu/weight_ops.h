// The ops over a packed weight: matmul and dequantize, spread over a thread pool.
//
// Quantized activations are widened first: x = f32(e4m3 code * scale), the code as the output
// quantizer would choose it.
#ifndef NIBBLE_KERNELS_CPU_WEIGHT_OPS_H_
#define NIBBLE_KERNELS_CPU_WEIGHT_OPS_H_

#include <cstdint>
#include <span>

#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "nibble/ops.h"

namespace nibble::cpu {

// Activations in binary32 for as many rows as one pass takes.
uint64_t MatmulWorkspaceBytes(int64_t m, int64_t k);

// `args` are valid, args.weight's packed form is `weight`. `gemv`: the kernel for few rows.
// `workspace` holds MatmulWorkspaceBytes, `scratch` kPanelScratchFloats per thread of the pool.
void RunMatmul(const MatmulArgs& args, const PackedWeight& weight, bool gemv, void* workspace,
               std::span<float* const> scratch, ThreadPool& pool);

void RunDequantize(const DequantizeArgs& args, const PackedWeight& weight, ThreadPool& pool);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_WEIGHT_OPS_H_
