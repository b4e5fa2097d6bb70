// INT4 and FP8: a scale from the range of the values, then round to nearest.
#include <algorithm>
#include <cmath>
#include <vector>

#include "fmt/format.h"
#include "kernels/core/quantize_formats.h"
#include "nibble/numeric.h"
#include "nibble/ops.h"

namespace nibble::core {
namespace {

constexpr float kSymmetricSteps = 7.5f;  // amax over the scale: half a step past code 7
constexpr float kAsymmetricSteps = 15.0f;
constexpr int kSymmetricZeroPoint = 8;
constexpr float kMaxE4M3 = 448.0f;
constexpr float kMinF16Scale = 0x1p-24f;  // the smallest value above 0

struct Range {
  float low = 0.0f;
  float high = 0.0f;
  void Include(float value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  float amax() const { return std::max(-low, high); }
};

float At(const ConstMatrixView& matrix, int64_t row, int64_t col) {
  return LoadAsFloat(matrix.data, matrix.dtype, row * matrix.row_stride + col);
}

// `scale` as it is stored: rounded to `dtype`, at least the floor. [row, col] is its place among
// the scales.
StatusOr<float> StoredScale(float scale, DType dtype, int64_t row, int64_t col) {
  const float floor = dtype == DType::kF16 ? kMinF16Scale : kMinQuantScale;
  const float rounded = std::max(RoundTo(dtype, scale), floor);
  if (std::isfinite(rounded)) return rounded;
  return absl::InvalidArgumentError(
      fmt::format("scales[{}, {}]: expected a value within the range of {}; received {}", row, col,
                  DTypeName(dtype), scale));
}

int Int4Code(float value, float scale, int zero) {
  return static_cast<int>(
      std::clamp(std::nearbyint(value / scale) + static_cast<float>(zero), 0.0f, 15.0f));
}

// Writes into zeroed bytes.
void SetNibble(std::byte* row_codes, int64_t k, int code) {
  row_codes[k / 2] |= static_cast<std::byte>(k % 2 == 0 ? code : code << 4);
}

}  // namespace

StatusOr<CanonicalWeight> QuantizeInt4(const ConstMatrixView& matrix, const WeightSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  std::vector<std::byte> codes(static_cast<size_t>(geometry.code_bytes));
  std::vector<std::byte> scales(static_cast<size_t>(geometry.scale_bytes));
  std::vector<std::byte> zero_points(static_cast<size_t>(geometry.zero_point_bytes));
  for (int64_t n = 0; n < spec.n; ++n) {
    std::byte* row_codes = codes.data() + n * CeilDiv(spec.k, 2);
    for (int64_t group = 0; group < geometry.groups; ++group) {
      const int64_t begin = group * spec.group_size;
      const int64_t end = begin + std::min(spec.group_size, spec.k - begin);
      Range range;
      for (int64_t k = begin; k < end; ++k) range.Include(At(matrix, n, k));
      const float ideal = spec.has_zero_points ? (range.high - range.low) / kAsymmetricSteps
                                               : range.amax() / kSymmetricSteps;
      NIBBLE_ASSIGN_OR_RETURN(const float scale, StoredScale(ideal, spec.scale_dtype, n, group));
      const int64_t index = n * geometry.groups + group;
      StoreFromFloat(scales.data(), spec.scale_dtype, index, scale);
      int zero = kSymmetricZeroPoint;
      if (spec.has_zero_points) {
        zero = Int4Code(-range.low, scale, 0);
        zero_points[static_cast<size_t>(index)] = static_cast<std::byte>(zero);
      }
      for (int64_t k = begin; k < end; ++k) {
        SetNibble(row_codes, k, Int4Code(At(matrix, n, k), scale, zero));
      }
    }
  }
  CanonicalWeight weight;
  weight.spec = spec;
  weight.codes = HostBytes(std::move(codes));
  weight.scales = HostBytes(std::move(scales));
  weight.zero_points = HostBytes(std::move(zero_points));
  return weight;
}

StatusOr<CanonicalWeight> QuantizeFP8(const ConstMatrixView& matrix, const WeightSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  // Every layout is a grid of tiles with a scale each.
  const bool block = spec.scale_layout == ScaleLayout::kBlock;
  const int64_t tile_n = block                                        ? spec.scale_block_n
                         : spec.scale_layout == ScaleLayout::kChannel ? 1
                                                                      : spec.n;
  const int64_t tile_k = block ? spec.scale_block_k : spec.k;
  const int64_t tile_cols = CeilDiv(spec.k, tile_k);

  std::vector<std::byte> codes(static_cast<size_t>(geometry.code_bytes));
  std::vector<std::byte> scales(static_cast<size_t>(geometry.scale_bytes));
  for (int64_t tile = 0; tile < geometry.scale_count; ++tile) {
    const int64_t n_begin = tile / tile_cols * tile_n;
    const int64_t n_end = n_begin + std::min(tile_n, spec.n - n_begin);
    const int64_t k_begin = tile % tile_cols * tile_k;
    const int64_t k_end = k_begin + std::min(tile_k, spec.k - k_begin);
    Range range;
    for (int64_t n = n_begin; n < n_end; ++n) {
      for (int64_t k = k_begin; k < k_end; ++k) range.Include(At(matrix, n, k));
    }
    NIBBLE_ASSIGN_OR_RETURN(
        const float scale,
        StoredScale(range.amax() / kMaxE4M3, spec.scale_dtype, tile / tile_cols, tile % tile_cols));
    StoreFromFloat(scales.data(), spec.scale_dtype, tile, scale);
    for (int64_t n = n_begin; n < n_end; ++n) {
      for (int64_t k = k_begin; k < k_end; ++k) {
        codes[static_cast<size_t>(n * spec.k + k)] =
            static_cast<std::byte>(FloatToF8E4M3(At(matrix, n, k) / scale));
      }
    }
  }
  CanonicalWeight weight;
  weight.spec = spec;
  weight.codes = HostBytes(std::move(codes));
  weight.scales = HostBytes(std::move(scales));
  return weight;
}

}  // namespace nibble::core
