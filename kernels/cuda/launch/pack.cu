#include "kernels/cuda/launch/pack.h"

#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/launch/grid.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

}  // namespace

cudaError_t LaunchPackCodes(const WeightView& view, const uint8_t* from, int64_t row_bytes,
                            int64_t first_nibble, int32_t row_begin, int32_t row_end, void* codes,
                            float* bias, cudaStream_t stream) {
  const int64_t rows = PaddedRows(row_end) - row_begin;
  const int64_t words = rows * view.units * (kUnitInputs / 8);
  const CanonicalCodes source{from, row_bytes, first_nibble, row_begin, row_end};
  PackCodesKernel<<<GridFor(words, kThreads), kThreads, 0, stream>>>(view, source, codes, bias);
  return cudaGetLastError();
}

cudaError_t LaunchExpandAbsmax(const uint8_t* codes, const float* map, const float* nested,
                               int64_t nested_block, float offset, int64_t count, float* absmax,
                               cudaStream_t stream) {
  ExpandAbsmaxKernel<<<GridFor(count, kThreads), kThreads, 0, stream>>>(
      codes, map, nested, nested_block, offset, count, absmax);
  return cudaGetLastError();
}

cudaError_t LaunchTile(const void* from, int element_bytes, int32_t n, int32_t groups,
                       int32_t repeat, void* to, int32_t to_groups, cudaStream_t stream) {
  const dim3 grid = GridFor(PaddedRows(n) * to_groups, kThreads);
  switch (element_bytes) {
    case 1:
      TileKernel<<<grid, kThreads, 0, stream>>>(static_cast<const uint8_t*>(from), n, groups,
                                                repeat, static_cast<uint8_t*>(to), to_groups);
      break;
    case 2:
      TileKernel<<<grid, kThreads, 0, stream>>>(static_cast<const uint16_t*>(from), n, groups,
                                                repeat, static_cast<uint16_t*>(to), to_groups);
      break;
    case 4:
      TileKernel<<<grid, kThreads, 0, stream>>>(static_cast<const uint32_t*>(from), n, groups,
                                                repeat, static_cast<uint32_t*>(to), to_groups);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

cudaError_t LaunchWiden(const void* from, Element type, int64_t count, float* to,
                        cudaStream_t stream) {
  return LaunchWidenRows(from, type, count, 1, count, to, count, stream);
}

cudaError_t LaunchWidenRows(const void* from, Element type, int64_t from_stride, int64_t rows,
                            int64_t cols, float* to, int64_t to_stride, cudaStream_t stream) {
  WidenKernel<<<GridFor(rows * cols, kThreads), kThreads, 0, stream>>>(from, type, from_stride,
                                                                       rows, cols, to, to_stride);
  return cudaGetLastError();
}

}  // namespace nibble::cuda
