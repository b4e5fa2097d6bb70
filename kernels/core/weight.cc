#include "nibble/weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fmt/format.h"
#include "nibble/numeric.h"

namespace nibble {
namespace {

constexpr int kMaxZeroPoint = 15;
constexpr int kSymmetricZeroPoint = 8;

Status CheckSize(std::string_view part, const HostBytes& bytes, int64_t expected) {
  if (bytes.size() == static_cast<uint64_t>(expected)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: expected {} bytes; received {}", part, expected, bytes.size()));
}

int64_t BytesOf(int64_t count, DType dtype) {
  return count * static_cast<int64_t>(DTypeBytes(dtype));
}

Status CheckSizes(const CanonicalWeight& weight, const WeightGeometry& geometry) {
  const WeightSpec& spec = weight.spec;
  const bool nested = geometry.nested_scale_count > 0;
  const bool indexed = spec.format == Format::kInt4 && spec.has_group_index;
  const bool has_source = spec.format == Format::kInt4 && weight.code_source != nullptr;
  NIBBLE_RETURN_IF_ERROR(CheckSize("codes", weight.codes, has_source ? 0 : geometry.code_bytes));
  NIBBLE_RETURN_IF_ERROR(CheckSize("scales", weight.scales, geometry.scale_bytes));
  NIBBLE_RETURN_IF_ERROR(CheckSize("nested_scales", weight.nested_scales,
                                   BytesOf(geometry.nested_scale_count, DType::kF32)));
  NIBBLE_RETURN_IF_ERROR(
      CheckSize("nested_map", weight.nested_map, nested ? BytesOf(256, DType::kF32) : 0));
  NIBBLE_RETURN_IF_ERROR(CheckSize("zero_points", weight.zero_points, geometry.zero_point_bytes));
  NIBBLE_RETURN_IF_ERROR(CheckSize("group_index", weight.group_index,
                                   indexed ? spec.k * int64_t{sizeof(int32_t)} : 0));
  return CheckSize("bias", weight.bias, spec.has_bias ? BytesOf(spec.n, spec.bias_dtype) : 0);
}

int32_t GroupIndex(const CanonicalWeight& weight, int64_t k) {
  int32_t group;
  std::memcpy(&group, weight.group_index.data() + k * int64_t{sizeof(group)}, sizeof(group));
  return group;
}

uint8_t ByteAt(const HostBytes& bytes, int64_t index) {
  return std::to_integer<uint8_t>(bytes.data()[index]);
}

float F32At(const HostBytes& bytes, int64_t index) {
  return LoadAsFloat(bytes.data(), DType::kF32, index);
}

// absmax of one block of an NF4 or FP4 weight. Multiply, round, add, round: the target is compiled
// without contraction.
float AbsMax(const CanonicalWeight& weight, int64_t block) {
  if (!weight.spec.nested) return F32At(weight.scales, block);
  const float product = F32At(weight.nested_map, ByteAt(weight.scales, block)) *
                        F32At(weight.nested_scales, block / weight.spec.nested_block_size);
  return product + weight.nested_offset;
}

float DecodeTable(const CanonicalWeight& weight, const float (&table)[16], int64_t n, int64_t k) {
  const int64_t index = n * weight.spec.k + k;
  const uint8_t byte = ByteAt(weight.codes, index / 2);
  const int code = index % 2 == 0 ? byte >> 4 : byte & 15;
  return table[code] * AbsMax(weight, index / weight.spec.block_size);
}

float DecodeInt4(const CanonicalWeight& weight, int64_t n, int64_t k) {
  const WeightSpec& spec = weight.spec;
  const uint8_t byte = ByteAt(weight.codes, n * CeilDiv(spec.k, 2) + k / 2);
  const int q = k % 2 == 0 ? byte & 15 : byte >> 4;
  const int64_t group = spec.has_group_index ? GroupIndex(weight, k) : k / spec.group_size;
  const int64_t index = n * CeilDiv(spec.k, spec.group_size) + group;
  const int zero = spec.has_zero_points ? ByteAt(weight.zero_points, index) : kSymmetricZeroPoint;
  return static_cast<float>(q - zero) * LoadAsFloat(weight.scales.data(), spec.scale_dtype, index);
}

int64_t ScaleIndex(const WeightSpec& spec, int64_t n, int64_t k) {
  switch (spec.scale_layout) {
    case ScaleLayout::kTensor:
      return 0;
    case ScaleLayout::kChannel:
      return n;
    case ScaleLayout::kBlock:
      return n / spec.scale_block_n * CeilDiv(spec.k, spec.scale_block_k) + k / spec.scale_block_k;
  }
  return 0;
}

float DecodeFP8(const CanonicalWeight& weight, int64_t n, int64_t k) {
  const WeightSpec& spec = weight.spec;
  return F8E4M3ToFloat(ByteAt(weight.codes, n * spec.k + k)) *
         LoadAsFloat(weight.scales.data(), spec.scale_dtype, ScaleIndex(spec, n, k));
}

float DecodeElement(const CanonicalWeight& weight, int64_t n, int64_t k) {
  switch (weight.spec.format) {
    case Format::kDense:
      return LoadAsFloat(weight.codes.data(), weight.spec.dtype, n * weight.spec.k + k);
    case Format::kNF4:
      return DecodeTable(weight, kNF4Table, n, k);
    case Format::kFP4:
      return DecodeTable(weight, kFP4Table, n, k);
    case Format::kInt4:
      return DecodeInt4(weight, n, k);
    case Format::kFP8:
      return DecodeFP8(weight, n, k);
  }
  return 0.0f;
}

}  // namespace

Status ValidateWeight(const CanonicalWeight& weight) {
  const WeightSpec& spec = weight.spec;
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  NIBBLE_RETURN_IF_ERROR(CheckSizes(weight, geometry));
  uint8_t largest = 0;  // looked at by itself, since that is many at once
  for (const std::byte zero : weight.zero_points.span()) {
    largest = std::max(largest, static_cast<uint8_t>(zero));
  }
  for (int64_t i = 0; largest > kMaxZeroPoint; ++i) {
    if (const int zero = ByteAt(weight.zero_points, i); zero > kMaxZeroPoint) {
      return absl::InvalidArgumentError(
          fmt::format("zero_points[{}, {}]: expected 0 to {}; received {}", i / geometry.groups,
                      i % geometry.groups, kMaxZeroPoint, zero));
    }
  }
  if (!weight.group_index.empty()) {
    for (int64_t k = 0; k < spec.k; ++k) {
      if (const int32_t group = GroupIndex(weight, k); group < 0 || group >= geometry.groups) {
        return absl::InvalidArgumentError(fmt::format(
            "group_index[{}]: expected 0 to {}; received {}", k, geometry.groups - 1, group));
      }
    }
  }
  if (spec.format == Format::kFP8 && spec.has_input_scale &&
      !(std::isfinite(weight.input_scale) && weight.input_scale > 0.0f)) {
    return absl::InvalidArgumentError(fmt::format(
        "input_scale: expected a finite value above 0; received {}", weight.input_scale));
  }
  return absl::OkStatus();
}

Status DecodeReference(const CanonicalWeight& weight, int64_t row_begin, int64_t rows,
                       std::span<float> out) {
  NIBBLE_RETURN_IF_ERROR(ValidateWeight(weight));
  if (weight.code_source != nullptr) {
    return absl::InvalidArgumentError("codes: expected bytes; received a source of them");
  }
  const int64_t n = weight.spec.n;
  const int64_t k = weight.spec.k;
  if (row_begin < 0 || rows < 0 || row_begin > n || rows > n - row_begin) {
    return absl::InvalidArgumentError(
        fmt::format("rows: expected a range within [0, {}); received [{}, {} + {})", n, row_begin,
                    row_begin, rows));
  }
  // rows <= n, and n * k fits 63 bits.
  if (out.size() != static_cast<uint64_t>(rows * k)) {
    return absl::InvalidArgumentError(
        fmt::format("out: expected {} elements; received {}", rows * k, out.size()));
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < k; ++col) {
      out[static_cast<size_t>(row * k + col)] = DecodeElement(weight, row_begin + row, col);
    }
  }
  return absl::OkStatus();
}

CanonicalWeight WithCodes(CanonicalWeight weight) {
  if (weight.code_source == nullptr) return weight;
  weight.codes = weight.code_source->ReadAll();
  weight.code_source = nullptr;
  return weight;
}

}  // namespace nibble
