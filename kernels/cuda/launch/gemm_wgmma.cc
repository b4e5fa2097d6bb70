#include "kernels/cuda/launch/gemm_wgmma.h"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int64_t kBlocksOfPair = 2;

// What a launch takes: so many µs for each unit of K that a block multiplies, and so many besides.
struct Cost {
  double unit_us;
  double launch_us;
  double Of(double units) const { return unit_us * units + launch_us; }
};

// As measured on an H200, INT4 g128: 4096, 6144 and 8192 outputs, 4096, 14336 and 28672 inputs, 16
// to 512 rows of BF16 (kernels/README.md). NF4 takes a tenth more either way. Other costs follow
// from these and from what the tensor cores take: of pairs of 128 outputs and 16 rows, of 256 and
// at most 64, and of F16 past these, whose shared tiles have 128 outputs.
Cost SharedCost(int columns, int groups) {
  if (columns <= 32) return {0.75, 9};
  if (columns == 64) return {1.0, 10.6};
  return groups == 2 ? Cost{0.9, 13} : Cost{1.7, 12};
}
Cost PairCost(int columns, int outputs) {
  constexpr Cost kOf64[] = {{0.19, 3}, {0.21, 3.2}, {0.26, 3.4}, {0.36, 4.6}};
  constexpr Cost kOf128[] = {{0.34, 3}, {0.37, 3}, {0.48, 3.3}, {0.88, 2.4}};
  constexpr Cost kOf256[] = {{0.8, 3}, {0.85, 3}, {1.1, 4}, {1.4, 7}};
  const int row = columns == 16 ? 0 : columns == 32 ? 1 : columns == 64 ? 2 : 3;
  return outputs == 64 ? kOf64[row] : outputs == 128 ? kOf128[row] : kOf256[row];
}

}  // namespace

WgmmaPlan::WgmmaPlan(int64_t m, int64_t n, int64_t k, bool f16, bool fp8, int multiprocessors) {
  constexpr int64_t kLeastUnits = 4;  // of K, of a share
  // Neither F16, whose weights are not scaled before they are multiplied, nor FP8 has a wide
  // kernel.
  if (m > kWideColumns / 2 && !f16 && !fp8 && PlanWide(m, n, multiprocessors)) return;
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
  // FP8 gains by pairs only at 64 rows of 4096x14336 (26.4 us against 28.9; 24.2 against 23.2 at
  // 16, 51 against 37 at 128).
  if (share && !fp8) PlanPairs(n, units, multiprocessors);
}

WgmmaPlan WgmmaPlan::Ordered(int64_t m, int64_t n, int multiprocessors) {
  WgmmaPlan plan;
  plan.ordered = true;
  plan.columns = m <= 32 ? 32 : 64;
  // Sums of three kinds of 64 rows take the registers of two warpgroups.
  plan.groups = m <= 32 ? 4 : 2;
  plan.column_tiles = (m + plan.columns - 1) / plan.columns;
  const int64_t rows = int64_t{plan.groups} * 64;
  plan.tiles = plan.whole_tiles = (n + rows - 1) / rows * plan.column_tiles;
  plan.blocks = static_cast<int>(std::min<int64_t>(plan.tiles, multiprocessors));
  return plan;
}

void WgmmaPlan::PlanPairs(int64_t n, int64_t units, int multiprocessors) {
  // The fewest outputs a tile whose pairs all run at once.
  for (int outputs = 64; outputs <= groups * 64; outputs *= 2) {
    const int64_t pairs = (n + outputs - 1) / outputs * column_tiles;
    if (pairs * kBlocksOfPair > multiprocessors) continue;
    const double shared_units = static_cast<double>(tiles * units) / blocks;
    const double shared_us = SharedCost(columns, groups).Of(shared_units);
    const double pair_units = static_cast<double>(units) / kBlocksOfPair;
    if (PairCost(columns, outputs).Of(pair_units) > shared_us) return;
    pair_outputs = outputs;
    tiles = whole_tiles = pairs;
    blocks = static_cast<int>(pairs * kBlocksOfPair);
    return;
  }
}

bool WgmmaPlan::PlanWide(int64_t m, int64_t n, int multiprocessors) {
  constexpr double kHalfTime = 0.6;  // of that of a whole tile
  constexpr int64_t kRows = 128;     // outputs of a tile
  const int64_t output_tiles = (n + kRows - 1) / kRows;
  const int64_t past = m % kWideColumns;
  const bool ends_in_half = past > 0 && past <= kWideColumns / 2;
  const int64_t full_columns = m / kWideColumns + (past > kWideColumns / 2 ? 1 : 0);
  const int64_t all = output_tiles * full_columns;
  const int64_t ends = ends_in_half ? output_tiles : 0;
  if (2 * all + ends <= multiprocessors) return false;
  // The time of `whole` tiles, fewer than multiprocessors, and `halves` beside and after them.
  const auto time = [&](int64_t whole, int64_t halves) {
    const int64_t beside = whole > 0 ? multiprocessors - whole : 0;
    const int64_t after = std::max<int64_t>(halves - beside, 0);
    const auto rounds = static_cast<double>((after + multiprocessors - 1) / multiprocessors);
    return (whole > 0 ? 1.0 : 0.0) + rounds * kHalfTime;
  };
  const int64_t last = all % multiprocessors;
  columns = kWideColumns;
  groups = 2;
  column_tiles = full_columns;
  halved_tiles = time(0, ends + 2 * last) < time(last, ends) ? last : 0;
  whole_tiles = all - halved_tiles;
  tiles = whole_tiles + 2 * halved_tiles + ends;
  blocks = static_cast<int>(std::min<int64_t>(tiles, multiprocessors));
  return true;
}

}  // namespace nibble::cuda
