#include "nibble/format.h"

#include <bit>
#include <initializer_list>
#include <limits>
#include <optional>

#include "fmt/format.h"

namespace nibble {
namespace {

// Block sizes that the writers of NF4 and FP4 checkpoints offer.
constexpr int64_t kMinBlockSize = 32;
constexpr int64_t kMaxBlockSize = 4096;
constexpr int64_t kNestedMapBytes = 256 * 4;

Status Invalid(std::string_view field, std::string_view expected, std::string_view received) {
  return absl::InvalidArgumentError(
      fmt::format("{}: expected {}; received {}", field, expected, received));
}

Status CheckPositive(std::string_view field, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return Invalid(field, "a value of at least 1", fmt::format("{}", value));
}

Status CheckBlockSize(std::string_view field, int64_t value) {
  if (value >= kMinBlockSize && value <= kMaxBlockSize &&
      std::has_single_bit(static_cast<uint64_t>(value))) {
    return absl::OkStatus();
  }
  return Invalid(field, "a power of two from 32 to 4096", fmt::format("{}", value));
}

Status CheckFloatDType(std::string_view field, DType dtype) {
  if (IsFloat16Or32(dtype)) return absl::OkStatus();
  return Invalid(field, "F32, F16 or BF16", DTypeName(dtype));
}

Status TooLarge(const WeightSpec& spec) {
  return Invalid("n, k", "a weight below 2^63 bytes", fmt::format("[{}, {}]", spec.n, spec.k));
}

Status CheckFields(const WeightSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(CheckPositive("n", spec.n));
  NIBBLE_RETURN_IF_ERROR(CheckPositive("k", spec.k));
  NIBBLE_RETURN_IF_ERROR(CheckFloatDType("dtype", spec.dtype));
  if (spec.has_bias) NIBBLE_RETURN_IF_ERROR(CheckFloatDType("bias_dtype", spec.bias_dtype));
  switch (spec.format) {
    case Format::kDense:
      return absl::OkStatus();
    case Format::kNF4:
    case Format::kFP4:
      NIBBLE_RETURN_IF_ERROR(CheckBlockSize("block_size", spec.block_size));
      if (!spec.nested) return absl::OkStatus();
      return CheckBlockSize("nested_block_size", spec.nested_block_size);
    case Format::kInt4:
      NIBBLE_RETURN_IF_ERROR(CheckPositive("group_size", spec.group_size));
      return CheckFloatDType("scale_dtype", spec.scale_dtype);
    case Format::kFP8:
      NIBBLE_RETURN_IF_ERROR(CheckFloatDType("scale_dtype", spec.scale_dtype));
      switch (spec.scale_layout) {
        case ScaleLayout::kTensor:
        case ScaleLayout::kChannel:
          return absl::OkStatus();
        case ScaleLayout::kBlock:
          NIBBLE_RETURN_IF_ERROR(CheckPositive("scale_block_n", spec.scale_block_n));
          return CheckPositive("scale_block_k", spec.scale_block_k);
      }
      return Invalid("scale_layout", "tensor, channel or block",
                     fmt::format("{}", static_cast<int>(spec.scale_layout)));
  }
  return Invalid("format", "dense, nf4, fp4, int4 or fp8",
                 fmt::format("{}", static_cast<int>(spec.format)));
}

// A non-negative size that remembers whether it ever left 63 bits.
class CheckedSize {
 public:
  explicit CheckedSize(std::optional<int64_t> value) : value_(value) {}
  CheckedSize operator*(int64_t factor) const {
    return CheckedSize(value_ ? CheckedMul(*value_, factor) : std::nullopt);
  }
  CheckedSize operator+(CheckedSize other) const {
    if (!value_ || !other.value_) return CheckedSize(std::nullopt);
    if (*value_ > std::numeric_limits<int64_t>::max() - *other.value_) {
      return CheckedSize(std::nullopt);
    }
    return CheckedSize(*value_ + *other.value_);
  }
  bool ok() const { return value_.has_value(); }
  int64_t value() const { return *value_; }

 private:
  std::optional<int64_t> value_;
};

int64_t ScaleRows(const WeightSpec& spec) {
  switch (spec.scale_layout) {
    case ScaleLayout::kTensor:
      return 1;
    case ScaleLayout::kChannel:
      return spec.n;
    case ScaleLayout::kBlock:
      return CeilDiv(spec.n, spec.scale_block_n);
  }
  return 0;
}

int64_t Bytes(DType dtype) { return static_cast<int64_t>(DTypeBytes(dtype)); }

}  // namespace

const float kNF4Table[16] = {std::bit_cast<float>(0xBF800000u), std::bit_cast<float>(0xBF3239B1u),
                             std::bit_cast<float>(0xBF066B30u), std::bit_cast<float>(0xBECA32A0u),
                             std::bit_cast<float>(0xBE91A24Du), std::bit_cast<float>(0xBE3D353Fu),
                             std::bit_cast<float>(0xBDBA7871u), 0.0f,
                             std::bit_cast<float>(0x3DA2FAFFu), std::bit_cast<float>(0x3E24CAE3u),
                             std::bit_cast<float>(0x3E7C04DDu), std::bit_cast<float>(0x3EAD033Au),
                             std::bit_cast<float>(0x3EE1A4B8u), std::bit_cast<float>(0x3F1007ABu),
                             std::bit_cast<float>(0x3F3913B3u), 1.0f};

const float kFP4Table[16] = {0.0f,
                             std::bit_cast<float>(0x3BAAAAABu),
                             std::bit_cast<float>(0x3F2AAAABu),
                             1.0f,
                             std::bit_cast<float>(0x3EAAAAABu),
                             0.5f,
                             std::bit_cast<float>(0x3E2AAAABu),
                             0.25f,
                             -0.0f,
                             std::bit_cast<float>(0xBBAAAAABu),
                             std::bit_cast<float>(0xBF2AAAABu),
                             -1.0f,
                             std::bit_cast<float>(0xBEAAAAABu),
                             -0.5f,
                             std::bit_cast<float>(0xBE2AAAABu),
                             -0.25f};

std::string_view FormatName(Format format) {
  switch (format) {
    case Format::kDense:
      return "dense";
    case Format::kNF4:
      return "nf4";
    case Format::kFP4:
      return "fp4";
    case Format::kInt4:
      return "int4";
    case Format::kFP8:
      return "fp8";
  }
  return "?";
}

StatusOr<Format> ParseFormat(std::string_view name) {
  for (Format format : {Format::kDense, Format::kNF4, Format::kFP4, Format::kInt4, Format::kFP8}) {
    if (name == FormatName(format)) return format;
  }
  return absl::InvalidArgumentError(
      fmt::format("format: expected dense, nf4, fp4, int4 or fp8; received '{}'", name));
}

std::string_view ScaleLayoutName(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::kTensor:
      return "tensor";
    case ScaleLayout::kChannel:
      return "channel";
    case ScaleLayout::kBlock:
      return "block";
  }
  return "?";
}

StatusOr<WeightGeometry> GeometryOf(const WeightSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(CheckFields(spec));
  const CheckedSize elements(CheckedMul(spec.n, spec.k));
  if (!elements.ok()) return TooLarge(spec);

  WeightGeometry geometry;
  CheckedSize codes(0), scales(0), scale_bytes(0), zero_points(0), others(0);
  switch (spec.format) {
    case Format::kDense:
      codes = elements * Bytes(spec.dtype);
      break;
    case Format::kNF4:
    case Format::kFP4:
      codes = CheckedSize(CeilDiv(elements.value(), 2));
      scales = CheckedSize(CeilDiv(elements.value(), spec.block_size));
      scale_bytes = scales * (spec.nested ? 1 : 4);
      if (spec.nested) {
        geometry.nested_scale_count = CeilDiv(scales.value(), spec.nested_block_size);
        others = CheckedSize(geometry.nested_scale_count) * 4 + CheckedSize(kNestedMapBytes);
      }
      break;
    case Format::kInt4:
      geometry.groups = CeilDiv(spec.k, spec.group_size);
      codes = CheckedSize(spec.n) * CeilDiv(spec.k, 2);
      scales = CheckedSize(spec.n) * geometry.groups;
      scale_bytes = scales * Bytes(spec.scale_dtype);
      if (spec.has_zero_points) zero_points = scales;
      if (spec.has_group_index) others = CheckedSize(spec.k) * 4;
      break;
    case Format::kFP8:
      codes = elements;
      scales = CheckedSize(ScaleRows(spec));
      if (spec.scale_layout == ScaleLayout::kBlock) {
        scales = scales * CeilDiv(spec.k, spec.scale_block_k);
      }
      scale_bytes = scales * Bytes(spec.scale_dtype);
      break;
  }
  if (spec.has_bias) others = others + CheckedSize(spec.n) * Bytes(spec.bias_dtype);
  const CheckedSize total = codes + scale_bytes + zero_points + others;
  if (!total.ok()) return TooLarge(spec);

  geometry.code_bytes = codes.value();
  geometry.scale_count = scales.value();
  geometry.scale_bytes = scale_bytes.value();
  geometry.zero_point_bytes = zero_points.value();
  geometry.total_bytes = total.value();
  return geometry;
}

std::string ToString(const WeightSpec& spec) {
  std::string line = fmt::format("{} {}x{}", FormatName(spec.format), spec.n, spec.k);
  switch (spec.format) {
    case Format::kDense:
      line += fmt::format(" {}", DTypeName(spec.dtype));
      break;
    case Format::kNF4:
    case Format::kFP4:
      line += fmt::format(" block {}{}", spec.block_size, spec.nested ? " nested" : "");
      break;
    case Format::kInt4:
      line += fmt::format(" group {} {}{}", spec.group_size, spec.has_zero_points ? "zp" : "sym",
                          spec.has_group_index ? " act-order" : "");
      break;
    case Format::kFP8:
      line += fmt::format(" {}", ScaleLayoutName(spec.scale_layout));
      if (spec.scale_layout == ScaleLayout::kBlock) {
        line += fmt::format(" {}x{}", spec.scale_block_n, spec.scale_block_k);
      }
      if (spec.has_input_scale) line += " input-scale";
      break;
  }
  if (spec.has_bias) line += " bias";
  return line;
}

std::string VariantName(const WeightSpec& spec) {
  switch (spec.format) {
    case Format::kDense:
      return "plain";
    case Format::kNF4:
    case Format::kFP4:
      return spec.nested ? "nested" : "plain";
    case Format::kInt4:
      return fmt::format("{}{}", spec.has_zero_points ? "zp" : "sym",
                         spec.has_group_index ? "-act-order" : "");
    case Format::kFP8:
      return std::string(ScaleLayoutName(spec.scale_layout));
  }
  return "?";
}

}  // namespace nibble
