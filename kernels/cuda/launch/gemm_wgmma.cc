#include "kernels/cuda/launch/gemm_wgmma.h"

#include <algorithm>

#include "kernels/cuda/device/wgmma_args.cuh"

namespace nibble::cuda {
namespace {

constexpr int64_t kBlocksOfPair = 2;
constexpr int kPairRows = 256;  // outputs of a pair's four warpgroups, those that share them apart

// What a launch takes: so many µs for each unit of K that a block multiplies, and so many besides.
struct Cost {
  double unit_us;
  double launch_us;
  double Of(double units) const { return unit_us * units + launch_us; }
};

// As measured on an H200: 4096 to 16384 outputs, 4096 to 28672 inputs, 16 to 512 rows of BF16
// (kernels/README.md), of INT4 g128. Pairs of 256 outputs outside of turns are those of INT4 g64
// and NF4; of 64 and 128 outputs, where pairs win by far, those of INT4 g128 a unit at a time: NF4
// takes a tenth more. The costs of F16 past 64 rows follow from these and from what the tensor
// cores take, as its tiles have 128 outputs at most.
Cost SharedCost(int columns, int groups, bool arranged_before) {
  // x of INT4 is put in order in the stages, that of tables by a kernel before.
  const double before_us = arranged_before ? 1.7 : 0;
  if (columns == 16) return {0.6, 8.5 + before_us};
  if (columns == 32) return {0.68, 8.5 + before_us};
  if (columns == 64) return {1.0, 8.2 + before_us};
  return groups == 2 ? Cost{0.9, 13} : Cost{1.7, 12};
}
// row: 0 to 3, of 16, 32, 64 or 128 rows.
Cost PairCost(int row, int groups, int outputs) {
  constexpr Cost kOf64[] = {{0.19, 3}, {0.21, 3.2}, {0.26, 3.4}, {0.36, 4.6}};
  constexpr Cost kOf128[] = {{0.34, 3}, {0.37, 3}, {0.48, 3.3}, {0.65, 5.4}};
  constexpr Cost kOf256[] = {{0.74, 3}, {0.8, 2.8}, {1.12, 2}, {1.28, 8.2}};
  if (groups == 2 && outputs == 128) return {0.88, 2.4};
  return outputs == 64 ? kOf64[row] : outputs == 128 ? kOf128[row] : kOf256[row];
}
// In turns; row: 0 to 2.
Cost TurnsCost(int row, int outputs) {
  constexpr Cost kOf64[] = {{0.17, 2.5}, {0.2, 2.7}, {0.24, 3.3}};
  constexpr Cost kOf128[] = {{0.27, 2}, {0.34, 2.6}, {0.48, 2.8}};
  constexpr Cost kOf256[] = {{0.52, 2}, {0.56, 2.6}, {0.83, 4.7}};
  return outputs == 64 ? kOf64[row] : outputs == 128 ? kOf128[row] : kOf256[row];
}
// Whether pairs run in turns (WgmmaLoop). one_scale: of INT4, with one scale a unit.
bool PairsTakeTurns(int columns, bool one_scale, bool f16) {
  return columns <= 64 && one_scale && !f16;
}
// Of tiles of the wide kernel that are halved, one a multiprocessor at most.
constexpr Cost kHalvesCost = {0.73, 3.3};

}  // namespace

WgmmaPlan::WgmmaPlan(int64_t m, int64_t n, int64_t k, const WgmmaOperands& operands,
                     int multiprocessors) {
  const bool f16 = operands.f16;
  const bool fp8 = operands.fp8;
  constexpr int64_t kLeastUnits = 4;  // of K, of a share
  // Neither F16, whose weights are not scaled before they are multiplied, nor FP8 has a wide
  // kernel.
  const bool wide = m > kWideColumns / 2 && !f16 && !fp8;
  if (wide && PlanWide(m, n, multiprocessors)) return;
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
  if (share && m <= 64 && PlanNarrow(n, multiprocessors)) return;
  whole_tiles = share ? 0 : tiles;
  const int64_t parts = share ? tiles * units / kLeastUnits : tiles;
  blocks = static_cast<int>(std::clamp<int64_t>(parts, 1, multiprocessors));
  // FP8 gains by pairs only at 64 rows of 4096x14336 (26.4 us against 28.9; 24.2 against 23.2 at
  // 16, 51 against 37 at 128).
  if (!share || fp8) return;
  const double best_us = PlanPairs(n, units, operands, multiprocessors);
  if (wide && kHalvesCost.Of(static_cast<double>(units)) < best_us) PlanHalves(m, n);
}

WgmmaPlan WgmmaPlan::InChains(int64_t m, int64_t n, int chains, int of_half, int multiprocessors) {
  WgmmaPlan plan;
  plan.chains = true;
  plan.columns = m <= 16 ? 16 : m <= 32 ? 32 : 64;
  plan.groups = 4;
  plan.column_tiles = (m + plan.columns - 1) / plan.columns;
  plan.pair_outputs = of_half > 0 ? kPairRows / of_half : 0;
  const int64_t rows = of_half > 0 ? plan.pair_outputs : int64_t{plan.groups} * 64;
  plan.tiles = (n + rows - 1) / rows * plan.column_tiles;
  plan.whole_tiles = of_half > 0 || chains == 1 ? plan.tiles : 0;
  plan.blocks = static_cast<int>(chains == 1   ? std::min<int64_t>(plan.tiles, multiprocessors)
                                 : of_half > 0 ? plan.tiles * kBlocksOfPair
                                               : plan.tiles * chains);
  return plan;
}

bool WgmmaPlan::PlanNarrow(int64_t n, int multiprocessors) {
  constexpr int kNarrowGroups = 3;
  constexpr int64_t kRows = int64_t{kNarrowGroups} * 64;
  const int64_t narrow = (n + kRows - 1) / kRows;
  // Fewer run as pairs, but of FP8, which was not measured with so few.
  const bool paired = (n + kPairRows - 1) / kPairRows * kBlocksOfPair <= multiprocessors;
  if (paired || narrow > multiprocessors) return false;
  groups = kNarrowGroups;
  tiles = whole_tiles = blocks = static_cast<int>(narrow);
  return true;
}

double WgmmaPlan::PlanPairs(int64_t n, int64_t units, const WgmmaOperands& operands,
                            int multiprocessors) {
  const double shared_units = static_cast<double>(tiles * units) / blocks;
  const double shared_us = SharedCost(columns, groups, operands.table).Of(shared_units);
  const int row = columns == 16 ? 0 : columns == 32 ? 1 : columns == 64 ? 2 : 3;
  const bool turns = PairsTakeTurns(columns, operands.one_scale, operands.f16);
  // The fewest outputs a tile whose pairs all run at once.
  for (int outputs = 64; outputs <= groups * 64; outputs *= 2) {
    const int64_t pairs = (n + outputs - 1) / outputs * column_tiles;
    if (pairs * kBlocksOfPair > multiprocessors) continue;
    const double pair_units = static_cast<double>(units) / kBlocksOfPair;
    const Cost cost = turns ? TurnsCost(row, outputs) : PairCost(row, groups, outputs);
    const double pairs_us = cost.Of(pair_units);
    if (pairs_us > shared_us) break;
    pair_outputs = outputs;
    tiles = whole_tiles = pairs;
    blocks = static_cast<int>(pairs * kBlocksOfPair);
    return pairs_us;
  }
  return shared_us;
}

namespace {

// y in tiles of the wide kernel.
struct WideTiles {
  int64_t columns = 0;  // of 256 rows of x
  int64_t all = 0;
  int64_t ends = 0;  // tiles of 128, of the rows past the last 256

  WideTiles(int64_t m, int64_t n) {
    constexpr int64_t kRows = 128;  // outputs of a tile
    const int64_t output_tiles = (n + kRows - 1) / kRows;
    const int64_t past = m % kWideColumns;
    const bool ends_in_half = past > 0 && past <= kWideColumns / 2;
    columns = m / kWideColumns + (past > kWideColumns / 2 ? 1 : 0);
    all = output_tiles * columns;
    ends = ends_in_half ? output_tiles : 0;
  }
};

}  // namespace

void WgmmaPlan::PlanHalves(int64_t m, int64_t n) {
  const WideTiles wide(m, n);
  columns = kWideColumns;
  groups = 2;
  pair_outputs = 0;
  column_tiles = wide.columns;
  halved_tiles = wide.all;
  whole_tiles = 0;
  tiles = 2 * wide.all + wide.ends;
  blocks = static_cast<int>(tiles);
}

bool WgmmaPlan::PlanWide(int64_t m, int64_t n, int multiprocessors) {
  constexpr double kHalfTime = 0.6;  // of that of a whole tile
  const WideTiles wide(m, n);
  const int64_t all = wide.all;
  const int64_t ends = wide.ends;
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
  column_tiles = wide.columns;
  halved_tiles = time(0, ends + 2 * last) < time(last, ends) ? last : 0;
  whole_tiles = all - halved_tiles;
  tiles = whole_tiles + 2 * halved_tiles + ends;
  blocks = static_cast<int>(std::min<int64_t>(tiles, multiprocessors));
  return true;
}

WgmmaLoop LoopOf(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch) {
  // The other loops are written for BF16 x: scaled weights of F16 would overflow.
  if (launch.f16) return WgmmaLoop::kGeneral;
  // Units with one scale: of tiles whose K is whole turns, of pairs of INT4. H200, NF4 28672x4096,
  // 64 rows: 33.5 us scaled, 35.3 in turns.
  const bool table = view.codes_kind == Codes::kTable;
  const bool wide_table = table && plan.columns == 64;
  const bool whole_turns = plan.SharedTiles() == 0 && view.units % kTurnUnits == 0;
  const bool one_scale = launch.scales_per_unit == 1;
  const bool takes_turns = plan.pair_outputs > 0
                               ? PairsTakeTurns(plan.columns, one_scale && !table, launch.f16)
                               : plan.columns <= 64 && one_scale && !wide_table && whole_turns;
  if (takes_turns) return WgmmaLoop::kTurns;
  // Scaled weights are not those of the GEMV.
  if (plan.chains) return WgmmaLoop::kGeneral;
  // Totals beside sums of so many rows take more registers than there are, but for pairs with 64
  // outputs, whose two warpgroups have them.
  if (plan.columns > 64) {
    return plan.pair_outputs == 64 ? WgmmaLoop::kGeneral : WgmmaLoop::kScaled;
  }
  return wide_table && plan.pair_outputs == 0 ? WgmmaLoop::kScaled : WgmmaLoop::kGeneral;
}

bool TakesArranged(const WeightView& view, const WgmmaPlan& plan, const WgmmaLaunch& launch) {
  if (plan.pair_outputs > 0) return false;
  return view.codes_kind != Codes::kInt4 || LoopOf(view, plan, launch) == WgmmaLoop::kScaled;
}

}  // namespace nibble::cuda
