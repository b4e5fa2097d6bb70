#include "kernels/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/pack_codes.h"
#include "nibble/numeric.h"

namespace nibble::cpu {
namespace {

constexpr uint64_t kTooLarge = std::numeric_limits<int64_t>::max();

// The flags mean something in this format only.
bool HasZeroPoints(const WeightSpec& spec) {
  return spec.format == Format::kInt4 && spec.has_zero_points;
}
bool HasGroupIndex(const WeightSpec& spec) {
  return spec.format == Format::kInt4 && spec.has_group_index;
}

template <typename T>
T* At(std::byte* memory, uint64_t offset) {
  return reinterpret_cast<T*>(memory + offset);
}

// absmax as binary32: stored so, or f32(f32(map[code] * nested scale) + offset).
void ExpandAbsmax(const CanonicalWeight& weight, int64_t count, float* absmax) {
  const WeightSpec& spec = weight.spec;
  if (!spec.nested) {
    LoadFloats(weight.scales.data(), DType::kF32, count, absmax);
    return;
  }
  float map[256];
  std::memcpy(map, weight.nested_map.data(), sizeof(map));
  const auto* codes = reinterpret_cast<const uint8_t*>(weight.scales.data());
  for (int64_t first = 0; first < count; first += spec.nested_block_size) {
    const int64_t last = std::min(count, first + spec.nested_block_size);
    const float nested =
        LoadAsFloat(weight.nested_scales.data(), DType::kF32, first / spec.nested_block_size);
    for (int64_t i = first; i < last; ++i) {
      const float product = map[codes[i]] * nested;
      absmax[i] = product + weight.nested_offset;
    }
  }
}

// Columns sorted by group, in their own order within a group.
void SortColumns(const CanonicalWeight& weight, int64_t groups, int64_t* columns,
                 int64_t* run_ends) {
  const auto k = static_cast<size_t>(weight.spec.k);
  std::vector<int32_t> group_of(k);
  std::memcpy(group_of.data(), weight.group_index.data(), k * sizeof(int32_t));
  std::fill(run_ends, run_ends + groups, 0);
  for (const int32_t group : group_of) ++run_ends[group];
  std::partial_sum(run_ends, run_ends + groups, run_ends);
  std::vector<int64_t> end(run_ends, run_ends + groups);
  for (auto column = static_cast<int64_t>(k); column-- > 0;) {
    columns[--end[static_cast<size_t>(group_of[static_cast<size_t>(column)])]] = column;
  }
}

}  // namespace

PackedLayout::PackedLayout(const WeightSpec& spec) {
  k_padded = PadInputs(spec.k);
  run_length = spec.k;
  int64_t scale_rows = 0;
  switch (spec.format) {
    case Format::kDense:
      row_bytes = spec.k * static_cast<int64_t>(DTypeBytes(spec.dtype));
      break;
    case Format::kNF4:
    case Format::kFP4:
      row_bytes = k_padded / 2;
      run_length = spec.block_size;
      groups = CeilDiv(spec.n * spec.k, spec.block_size);
      scale_rows = 1;
      break;
    case Format::kInt4:
      row_bytes = k_padded / 2;
      run_length = spec.group_size;
      groups = CeilDiv(spec.k, spec.group_size);
      scale_rows = spec.n;
      break;
    case Format::kFP8:
      row_bytes = k_padded;
      if (spec.scale_layout == ScaleLayout::kTensor) rows_per_scale = spec.n;
      if (spec.scale_layout == ScaleLayout::kBlock) {
        rows_per_scale = spec.scale_block_n;
        run_length = spec.scale_block_k;
        groups = CeilDiv(spec.k, spec.scale_block_k);
      }
      scale_rows = CeilDiv(spec.n, rows_per_scale);
      break;
  }
  scale_count = scale_rows * groups;
  codes_offset = Place(spec.n, row_bytes);
  scales_offset = Place(scale_count, sizeof(float));
  if (HasZeroPoints(spec)) zero_points_offset = Place(spec.n, groups);
  if (HasGroupIndex(spec)) {
    columns_offset = Place(spec.k, sizeof(int64_t));
    run_ends_offset = Place(groups, sizeof(int64_t));
  }
  if (spec.has_bias) bias_offset = Place(spec.n, sizeof(float));
}

uint64_t PackedLayout::Place(int64_t count, int64_t item_bytes) {
  const uint64_t offset = total_bytes;
  const auto bytes = static_cast<uint64_t>(CheckedMul(count, item_bytes).value_or(kTooLarge));
  if (bytes > kTooLarge - kAlignment || total_bytes > kTooLarge - AlignedSize(bytes)) {
    total_bytes = kTooLarge;
  } else {
    total_bytes += AlignedSize(bytes);
  }
  return offset;
}

PackedWeight Pack(const CanonicalWeight& weight, std::byte* memory) {
  const WeightSpec& spec = weight.spec;
  const PackedLayout layout(spec);
  PackedWeight packed;
  packed.spec = spec;
  packed.k_padded = layout.k_padded;
  packed.row_bytes = layout.row_bytes;
  packed.rows_per_scale = layout.rows_per_scale;
  packed.groups = layout.groups;
  packed.run_length = layout.run_length;

  auto* codes = At<uint8_t>(memory, layout.codes_offset);
  packed.codes = codes;
  if (layout.scale_count > 0) {
    auto* scales = At<float>(memory, layout.scales_offset);
    packed.scales = scales;
    if (packed.flat_runs()) {
      ExpandAbsmax(weight, layout.scale_count, scales);
    } else {
      LoadFloats(weight.scales.data(), spec.scale_dtype, layout.scale_count, scales);
    }
  }
  if (HasZeroPoints(spec)) {
    auto* zero_points = At<uint8_t>(memory, layout.zero_points_offset);
    std::memcpy(zero_points, weight.zero_points.data(), weight.zero_points.size());
    packed.zero_points = zero_points;
  }
  if (HasGroupIndex(spec)) {
    auto* columns = At<int64_t>(memory, layout.columns_offset);
    auto* run_ends = At<int64_t>(memory, layout.run_ends_offset);
    SortColumns(weight, layout.groups, columns, run_ends);
    packed.columns = columns;
    packed.run_ends = run_ends;
  }
  if (spec.has_bias) {
    auto* bias = At<float>(memory, layout.bias_offset);
    LoadFloats(weight.bias.data(), spec.bias_dtype, spec.n, bias);
    packed.bias = bias;
  }

  switch (spec.format) {
    case Format::kDense:
      std::memcpy(codes, weight.codes.data(), weight.codes.size());
      break;
    case Format::kNF4:
    case Format::kFP4:
    case Format::kInt4:
      PackCodes(weight, packed, codes);
      break;
    case Format::kFP8:
      for (int64_t n = 0; n < spec.n; ++n, codes += layout.row_bytes) {
        std::memcpy(codes, weight.codes.data() + n * spec.k, static_cast<size_t>(spec.k));
        std::memset(codes + spec.k, 0, static_cast<size_t>(layout.row_bytes - spec.k));
      }
      break;
  }
  return packed;
}

RunCursor::RunCursor(const PackedWeight& weight, int64_t row, int64_t k)
    : scales_(weight.scales),
      run_ends_(weight.run_ends),
      run_length_(weight.run_length),
      k_(weight.spec.k) {
  if (weight.flat_runs()) {
    base_ = row * k_;
    run_ = (base_ + k) / run_length_;
  } else {
    const int64_t first = row / weight.rows_per_scale * weight.groups;
    scales_ += first;
    if (weight.zero_points != nullptr) zero_points_ = weight.zero_points + first;
    if (run_ends_ != nullptr) {
      run_ = std::upper_bound(run_ends_, run_ends_ + weight.groups, k) - run_ends_;
      end_ = run_ == 0 ? 0 : run_ends_[run_ - 1];
    } else {
      run_ = k / run_length_;
    }
  }
  SetEnd();
}

}  // namespace nibble::cpu
