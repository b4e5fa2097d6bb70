// The flags that describe a format: of a matrix to be quantized, or of a weight that need not
// exist.
#ifndef NIBBLE_CLIENT_CLI_FORMAT_FLAGS_H_
#define NIBBLE_CLIENT_CLI_FORMAT_FLAGS_H_

#include <CLI/App.hpp>

#include "client/cpp/cli/flags.h"

namespace nibble::cli {

class FormatFlags {
 public:
  void AddTo(CLI::App& app) {
    format_option_ = AddNamedFlag(app, "--format", format_, WeightFormatFlags(), "Format");
    app.add_option("--block-size", block_size_, "nf4, fp4: elements per absmax")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_flag("--nested", nested_, "nf4, fp4: absmax stored as 8-bit codes");
    app.add_option("--group-size", group_size_, "int4: inputs per scale; -1: a whole column")
        ->capture_default_str();
    app.add_flag("--zero-points", zero_points_, "int4: asymmetric");
    AddNamedFlag(app, "--scale-layout", scale_layout_, ScaleLayoutFlags(),
                 "fp8: what shares a scale. Default tensor");
  }

  // For commands that quantize.
  void AddSearchTo(CLI::App& app) {
    app.add_flag("--search-scale", search_scale_,
                 "int4: search the scale of least squared error for each group; slower");
  }

  // The format and its parameters in the form of nibbled's --quantize: "nf4+block=64+nested".
  std::string Text() const {
    std::string text(FlagName(format_));
    if (format_ == v1::WEIGHT_FORMAT_NF4 || format_ == v1::WEIGHT_FORMAT_FP4) {
      text += fmt::format("+block={}{}", block_size_, nested_ ? "+nested" : "");
    } else if (format_ == v1::WEIGHT_FORMAT_INT4) {
      text += fmt::format("+group={}{}{}", group_size_, zero_points_ ? "+zero-points" : "",
                          search_scale_ ? "+search" : "");
    } else if (format_ == v1::WEIGHT_FORMAT_FP8) {
      text += fmt::format("+{}", FlagName(scale_layout_));
    }
    return text;
  }

  bool given() const { return format_option_->count() > 0; }

  // The parameters that the format has.
  v1::FormatSpec Spec() const {
    v1::FormatSpec spec;
    spec.set_format(format_);
    if (format_ == v1::WEIGHT_FORMAT_NF4 || format_ == v1::WEIGHT_FORMAT_FP4) {
      spec.set_block_size(block_size_);
      spec.set_nested(nested_);
    } else if (format_ == v1::WEIGHT_FORMAT_INT4) {
      spec.set_group_size(group_size_);
      spec.set_zero_points(zero_points_);
      spec.set_search_scale(search_scale_);
    } else if (format_ == v1::WEIGHT_FORMAT_FP8) {
      spec.set_scale_layout(scale_layout_);
    }
    return spec;
  }

 private:
  CLI::Option* format_option_ = nullptr;
  v1::WeightFormat format_ = v1::WEIGHT_FORMAT_UNSPECIFIED;
  int64_t block_size_ = 64;
  bool nested_ = false;
  int64_t group_size_ = 128;
  bool zero_points_ = false;
  bool search_scale_ = false;
  v1::ScaleLayout scale_layout_ = v1::SCALE_LAYOUT_TENSOR;
};

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_FORMAT_FLAGS_H_
