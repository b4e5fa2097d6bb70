#include "kernels/cuda/launch/gemm_wgmma.h"

#include <algorithm>
#include <cstdlib>

namespace nibble::cuda {

WgmmaPlan::WgmmaPlan(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  const int64_t units = (k + kUnitInputs - 1) / kUnitInputs;
  columns = m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : 128;
  groups = 4;
  scaled = columns == 128;
  if (const char* e = getenv("NIBBLE_GROUPS")) groups = atoi(e);
  if (const char* e = getenv("NIBBLE_HEIGHT")) if (columns == 128) { height = atoi(e); groups = 2; }
  if (const char* e = getenv("NIBBLE_SCALED")) scaled = columns >= 64 && atoi(e) != 0;
  const int64_t rows = int64_t{groups} * height * 64;
  column_tiles = (m + columns - 1) / columns;
  tiles = (n + rows - 1) / rows * column_tiles;
  const int64_t left = tiles % multiprocessors;
  whole_tiles = tiles - left;
  // Units of K that a share has at least.
  int64_t least = 2;
  if (const char* e = getenv("NIBBLE_LEAST")) least = atoi(e);
  blocks = static_cast<int>(whole_tiles > 0 ? multiprocessors : std::min<int64_t>(multiprocessors, std::max<int64_t>(1, tiles * units / least)));
  if (const char* e = getenv("NIBBLE_SHARE"); e && atoi(e) == 0) { whole_tiles = tiles; blocks = std::min<int64_t>(tiles, multiprocessors); }
}

}  // namespace nibble::cuda
