#include "kernels/cuda/launch/gemm_wgmma.h"

#include <algorithm>
#include <cstdlib>

namespace nibble::cuda {

WgmmaPlan::WgmmaPlan(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  const int64_t units = (k + kUnitInputs - 1) / kUnitInputs;
  columns = m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128;
  groups = columns <= 32 ? 4 : 2;
  if (const char* e = getenv("NIBBLE_GROUPS")) groups = atoi(e);
  if (const char* e = getenv("NIBBLE_HEIGHT")) height = columns == 128 ? atoi(e) : 1;
  if (const char* e = getenv("NIBBLE_SCALED")) scaled = columns >= 64 && atoi(e) != 0;
  const int64_t rows = int64_t{groups} * height * 64;
  row_tiles = (n + rows - 1) / rows;
  column_tiles = (m + columns - 1) / columns;
  const int64_t most = std::max<int64_t>(1, units / 2);
  splits = static_cast<int>(std::clamp<int64_t>(multiprocessors / std::max<int64_t>(1, Tiles()), 1,
                                                std::min<int64_t>(most, 16)));
  if (const char* e = getenv("NIBBLE_SPLITS")) splits = atoi(e);
}

}  // namespace nibble::cuda
