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
  whole_tiles = tiles;
  blocks = static_cast<int>(std::min<int64_t>(tiles, multiprocessors));
  int64_t most = multiprocessors * 2 / 3;
  if (const char* e = getenv("NIBBLE_MOST")) most = atoi(e);
  if (tiles > most) return;
  whole_tiles = 0;
  int64_t least = 4;
  if (const char* e = getenv("NIBBLE_LEAST")) least = atoi(e);
  blocks = static_cast<int>(std::clamp<int64_t>(tiles * units / least, 1, multiprocessors));
}

}  // namespace nibble::cuda
