// The text form of a quantization target.
#include <algorithm>
#include <charconv>
#include <optional>

#include "fmt/format.h"
#include "nibble/quantize.h"

namespace nibble {
namespace {

std::optional<int64_t> NumberAfter(std::string_view option, std::string_view key) {
  if (!option.starts_with(key)) return std::nullopt;
  option.remove_prefix(key.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(option.data(), option.data() + option.size(), number);
  if (error != std::errc() || end != option.data() + option.size()) return std::nullopt;
  return number;
}

bool TakeTableOption(std::string_view option, WeightSpec* spec) {
  if (option == "nested") {
    spec->nested = true;
    return true;
  }
  const std::optional<int64_t> block = NumberAfter(option, "block=");
  if (block) spec->block_size = *block;
  return block.has_value();
}

bool TakeInt4Option(std::string_view option, QuantizeTarget* target) {
  if (option == "zero-points") {
    target->spec.has_zero_points = true;
    return true;
  }
  if (option == "search") {
    target->options.search_scale = true;
    return true;
  }
  const std::optional<int64_t> group = NumberAfter(option, "group=");
  if (group) target->spec.group_size = *group == -1 ? kWholeColumn : *group;
  return group.has_value();
}

bool TakeFp8Option(std::string_view option, WeightSpec* spec) {
  for (ScaleLayout layout : {ScaleLayout::kTensor, ScaleLayout::kChannel, ScaleLayout::kBlock}) {
    if (option != ScaleLayoutName(layout)) continue;
    spec->scale_layout = layout;
    return true;
  }
  return false;
}

// What the options of `format` are, for messages.
std::string_view OptionsOf(Format format) {
  if (format == Format::kInt4) return "group=N, zero-points or search";
  if (format == Format::kFP8) return "tensor, channel or block";
  return "block=N or nested";
}

bool TakeOption(std::string_view option, QuantizeTarget* target) {
  switch (target->spec.format) {
    case Format::kNF4:
    case Format::kFP4:
      return TakeTableOption(option, &target->spec);
    case Format::kInt4:
      return TakeInt4Option(option, target);
    case Format::kFP8:
      return TakeFp8Option(option, &target->spec);
    case Format::kDense:
      break;
  }
  return false;
}

}  // namespace

StatusOr<QuantizeTarget> ParseQuantizeTarget(std::string_view text) {
  QuantizeTarget target;
  const std::string_view name = text.substr(0, text.find('+'));
  const StatusOr<Format> format = ParseFormat(name);
  if (!format.ok() || *format == Format::kDense) {
    return absl::InvalidArgumentError(
        fmt::format("format: expected nf4, fp4, int4 or fp8; received '{}'", name));
  }
  target.spec.format = *format;
  for (size_t plus = text.find('+'); plus != std::string_view::npos;) {
    const size_t begin = plus + 1;
    plus = text.find('+', begin);
    const std::string_view option = text.substr(begin, plus - begin);
    if (!TakeOption(option, &target)) {
      return absl::InvalidArgumentError(fmt::format("option of {}: expected {}; received '{}'",
                                                    name, OptionsOf(*format), option));
    }
  }
  NIBBLE_RETURN_IF_ERROR(GeometryOf(SpecFor(target, 1, 1, DType::kF32)).status());
  return target;
}

std::string ToString(const QuantizeTarget& target) {
  const WeightSpec& spec = target.spec;
  std::string text(FormatName(spec.format));
  switch (spec.format) {
    case Format::kDense:
      break;
    case Format::kNF4:
    case Format::kFP4:
      text += fmt::format("+block={}{}", spec.block_size, spec.nested ? "+nested" : "");
      break;
    case Format::kInt4:
      text += fmt::format("+group={}{}{}", spec.group_size == kWholeColumn ? -1 : spec.group_size,
                          spec.has_zero_points ? "+zero-points" : "",
                          target.options.search_scale ? "+search" : "");
      break;
    case Format::kFP8:
      text += fmt::format("+{}", ScaleLayoutName(spec.scale_layout));
      break;
  }
  return text;
}

WeightSpec SpecFor(const QuantizeTarget& target, int64_t n, int64_t k, DType dtype) {
  WeightSpec spec = target.spec;
  spec.n = n;
  spec.k = k;
  spec.dtype = dtype;
  // A bad group size stays what it is, for GeometryOf to name.
  if (spec.format == Format::kInt4) spec.group_size = std::min(spec.group_size, k);
  return spec;
}

}  // namespace nibble
