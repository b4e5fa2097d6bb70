// Launchers of the repacking kernels. All pointers are device memory.
#ifndef NIBBLE_KERNELS_CUDA_LAUNCH_PACK_H_
#define NIBBLE_KERNELS_CUDA_LAUNCH_PACK_H_

#include <cstdint>

#include "kernels/cuda/device/weight_view.cuh"

namespace nibble::cuda {

// Packs rows [row_begin, row_end), row_begin % 16 == 0, from canonical bytes into `codes`, the
// whole weight's. `from` starts at the byte of row_begin's first code; row_bytes apart for INT4 and
// FP8; first_nibble is the flat index of its first nibble for tables. FP8 rows with a NaN code set
// their `bias` to NaN.
cudaError_t LaunchPackCodes(const WeightView& view, const uint8_t* from, int64_t row_bytes,
                            int64_t first_nibble, int32_t row_begin, int32_t row_end, void* codes,
                            float* bias, cudaStream_t stream);

cudaError_t LaunchExpandAbsmax(const uint8_t* codes, const float* map, const float* nested,
                               int64_t nested_block, float offset, int64_t count, float* absmax,
                               cudaStream_t stream);

// Row-major [n, groups] elements of 1, 2 or 4 bytes, each `repeat` times, into
// [ceil(n / 16)][to_groups][16].
cudaError_t LaunchTile(const void* from, int element_bytes, int32_t n, int32_t groups,
                       int32_t repeat, void* to, int32_t to_groups, cudaStream_t stream);

cudaError_t LaunchWiden(const void* from, Element type, int64_t count, float* to,
                        cudaStream_t stream);

// Rows of `cols` elements; a from_stride of 0 repeats one.
cudaError_t LaunchWidenRows(const void* from, Element type, int64_t from_stride, int64_t rows,
                            int64_t cols, float* to, int64_t to_stride, cudaStream_t stream);

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_LAUNCH_PACK_H_
