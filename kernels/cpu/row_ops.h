// The ops that work on rows: norm + quant and silu-mul + quant.
//
// Order of the sum of squares, which depends on nothing but d: 16 binary32 lanes; h[i]^2, rounded,
// is added to lane i mod 16 in ascending i; the lanes are summed pairwise, i with i + 8, then i +
// 4, i + 2, i + 1. Then mean = sum / d, and rsqrt = 1 / sqrt(mean + epsilon), each step rounded.
#ifndef NIBBLE_KERNELS_CPU_ROW_OPS_H_
#define NIBBLE_KERNELS_CPU_ROW_OPS_H_

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "nibble/ops.h"

namespace nibble::cpu {

// Scratch for rows of `d` outputs on `threads` threads.
uint64_t RowOpWorkspaceBytes(int64_t d, int threads);

// `args` are valid; `workspace` holds RowOpWorkspaceBytes, aligned for floats.
void RunNormQuant(const NormQuantArgs& args, void* workspace, ThreadPool& pool);
void RunSiluMulQuant(const SiluMulQuantArgs& args, void* workspace, ThreadPool& pool);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_ROW_OPS_H_
