// NF4 and FP4: bitsandbytes' quantization rule.
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "kernels/core/dynamic_map.h"
#include "kernels/core/quantize_formats.h"
#include "nibble/numeric.h"

namespace nibble::core {
namespace {

// Midpoints of neighbouring entries of kNF4Table, rounded to binary32.
constexpr float kNF4Thresholds[15] = {
    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
    0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f};

// bitsandbytes' literals, a few units in the last place off the midpoints, with the code of the
// magnitudes above each.
constexpr std::pair<float, uint8_t> kFP4Thresholds[7] = {
    {0.00260417f, 1}, {0.0859375f, 6}, {0.20833333f, 7}, {0.29166667f, 4},
    {0.4166667f, 5},  {0.583333f, 2},  {0.8333333f, 3}};

uint8_t NF4Code(float u) {
  uint8_t code = 0;
  for (float threshold : kNF4Thresholds) code += u > threshold ? 1 : 0;
  return code;
}

uint8_t FP4Code(float u) {
  const float magnitude = std::fabs(u);
  uint8_t code = 0;
  for (const auto& [threshold, above] : kFP4Thresholds) {
    if (magnitude > threshold) code = above;
  }
  return static_cast<uint8_t>(code | (u < 0.0f ? 8 : 0));
}

float MaxMagnitude(std::span<const float> values) {
  float largest = 0.0f;
  for (float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Flat elements [begin, begin + out.size()) of the matrix.
void Gather(const ConstMatrixView& matrix, int64_t begin, std::span<float> out) {
  int64_t row = begin / matrix.cols;
  int64_t col = begin % matrix.cols;
  for (float& value : out) {
    value = LoadAsFloat(matrix.data, matrix.dtype, row * matrix.row_stride + col);
    if (++col == matrix.cols) {
      col = 0;
      ++row;
    }
  }
}

// Packs the codes of one block and returns its absmax. In a block of zeros 1 / absmax is infinite
// and u is NaN, which exceeds no threshold: code 0, as on the GPU. `codes` holds the block's bytes;
// after an odd number of values the spare nibble gets the code of 0.
float EncodeBlock(Format format, std::span<const float> values, std::span<std::byte> codes) {
  const float absmax = MaxMagnitude(values);
  const float inverse = 1.0f / absmax;
  const auto code_of = format == Format::kNF4 ? NF4Code : FP4Code;
  for (size_t byte = 0; byte < codes.size(); ++byte) {
    const size_t even = 2 * byte;
    const uint8_t high = code_of(values[even] * inverse);
    const uint8_t low =
        even + 1 < values.size() ? code_of(values[even + 1] * inverse) : code_of(0.0f);
    codes[byte] = static_cast<std::byte>(high << 4 | low);
  }
  return absmax;
}

HostBytes F32Bytes(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return HostBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

// Replaces the absmax by 8-bit codes of their differences from the mean.
void NestAbsMax(std::span<const float> absmax, CanonicalWeight& weight) {
  double sum = 0.0;
  for (float value : absmax) sum += value;
  const auto offset = static_cast<float>(sum / static_cast<double>(absmax.size()));

  const auto block_size = static_cast<size_t>(weight.spec.nested_block_size);
  const DynamicMap& map = SignedDynamicMap();
  std::vector<std::byte> codes(absmax.size());
  std::vector<float> nested_scales;
  for (size_t begin = 0; begin < absmax.size(); begin += block_size) {
    const auto block = absmax.subspan(begin, std::min(block_size, absmax.size() - begin));
    float largest = 0.0f;
    for (float value : block) largest = std::max(largest, std::fabs(value - offset));
    nested_scales.push_back(largest);
    for (size_t i = 0; i < block.size(); ++i) {
      const float share = largest > 0.0f ? (block[i] - offset) / largest : 0.0f;
      codes[begin + i] = static_cast<std::byte>(NearestEntry(map, share));
    }
  }
  weight.scales = HostBytes(std::move(codes));
  weight.nested_scales = F32Bytes(nested_scales);
  weight.nested_map = F32Bytes(map);
  weight.nested_offset = offset;
}

}  // namespace

StatusOr<CanonicalWeight> QuantizeTable(const ConstMatrixView& matrix, const WeightSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  const int64_t elements = spec.n * spec.k;
  std::vector<std::byte> codes(static_cast<size_t>(geometry.code_bytes));
  std::vector<float> absmax(static_cast<size_t>(geometry.scale_count));
  std::vector<float> values(static_cast<size_t>(spec.block_size));
  for (size_t block = 0; block < absmax.size(); ++block) {
    // Block sizes are even, so no two blocks share a byte.
    const int64_t begin = static_cast<int64_t>(block) * spec.block_size;
    const auto count = static_cast<size_t>(std::min(spec.block_size, elements - begin));
    const auto in_block = std::span(values).first(count);
    Gather(matrix, begin, in_block);
    absmax[block] =
        EncodeBlock(spec.format, in_block,
                    std::span(codes).subspan(static_cast<size_t>(begin / 2), (count + 1) / 2));
  }

  CanonicalWeight weight;
  weight.spec = spec;
  weight.codes = HostBytes(std::move(codes));
  if (spec.nested) {
    NestAbsMax(absmax, weight);
  } else {
    weight.scales = F32Bytes(absmax);
  }
  return weight;
}

}  // namespace nibble::core
