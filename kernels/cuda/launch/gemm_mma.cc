#include "kernels/cuda/launch/gemm_mma.h"

#include <algorithm>

namespace nibble::cuda {

MmaPlan::MmaPlan(int64_t m, int64_t n, int64_t k, bool table, int multiprocessors) {
  constexpr int64_t kLeastUnits = 4;  // of K, of a share
  const int64_t units = (k + kUnitInputs - 1) / kUnitInputs;
  // Table formats take longer by 16 (H200, NF4 28672x4096: 54.9 us, 43.3 by 32).
  columns = m <= 16 && !table ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128;
  rows = columns == 128 ? 128 : 256;
  column_tiles = (m + columns - 1) / columns;
  tiles = (n + rows - 1) / rows * column_tiles;
  whole_tiles = tiles;
  blocks = static_cast<int>(std::min<int64_t>(tiles, multiprocessors));
  // Sharing the last tiles costs the writing and reading of sums and a second kernel: worth it only
  // where without it much of the last round would be idle.
  const int64_t rounds = (tiles + multiprocessors - 1) / multiprocessors;
  const int64_t left = tiles % multiprocessors;
  const int64_t parts = left * units / kLeastUnits;
  if (left == 0 || parts <= left || tiles * 10 >= rounds * multiprocessors * 8) return;
  if (rounds > 1 && parts < multiprocessors) return;
  whole_tiles = tiles - left;
  blocks = static_cast<int>(std::min<int64_t>(parts, multiprocessors));
}

}  // namespace nibble::cuda
