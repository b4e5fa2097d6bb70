#include "nibble/format.h"

#include "fmt/format.h"

namespace nibble {

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

}  // namespace nibble
