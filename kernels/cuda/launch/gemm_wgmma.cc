#include "kernels/cuda/launch/gemm_wgmma.h"

#include <algorithm>

namespace nibble::cuda {

WgmmaPlan::WgmmaPlan(int64_t m, int64_t n, int64_t k, bool f16, bool fp8, int multiprocessors) {
  constexpr int64_t kLeastUnits = 4;  // of K, of a share
  const int64_t units = (k + kUnitInputs - 1) / kUnitInputs;
  columns = m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128;
  // F16 has no room for scaled weights: the registers of their totals are those of two warpgroups.
  // FP8 codes are multiplied as they are.
  groups = columns == 128 && f16 && !fp8 ? 2 : 4;
  const int64_t rows = int64_t{groups} * 64;
  column_tiles = (m + columns - 1) / columns;
  tiles = (n + rows - 1) / rows * column_tiles;
  // Sharing tiles costs the writing and reading of sums: worth it only where many multiprocessors
  // would have none (H200, INT4 28672x4096, 112 tiles for 132: 24.6 us against 23.2 at 16 rows,
  // 60.5 against 50.3 at 128).
  const bool share = tiles <= int64_t{multiprocessors} * 2 / 3;
  whole_tiles = share ? 0 : tiles;
  const int64_t parts = share ? tiles * units / kLeastUnits : tiles;
  blocks = static_cast<int>(std::clamp<int64_t>(parts, 1, multiprocessors));
}

}  // namespace nibble::cuda
