// The flags of everything that quantizes a whole checkpoint: the format, and which layers.
#ifndef NIBBLE_CLIENT_CLI_QUANTIZE_FLAGS_H_
#define NIBBLE_CLIENT_CLI_QUANTIZE_FLAGS_H_

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/cli/format_flags.h"

namespace nibble::cli {

class QuantizeFlags {
 public:
  void AddTo(CLI::App& app) {
    format_.AddTo(app);
    format_.AddSearchTo(app);
    AddLayersTo(app);
  }

  // --include and --exclude, where the format's flags are there already.
  void AddLayersTo(CLI::App& app) {
    app.add_option(
           "--include", include_,
           "Pattern of layers to quantize ('*': any text); repeatable. Default: every linear "
           "layer but output heads")
        ->allow_extra_args(false)
        ->type_name("PATTERN");
    app.add_option("--exclude", exclude_,
                   "Pattern of layers to leave as they are; wins over --include; repeatable")
        ->allow_extra_args(false)
        ->type_name("PATTERN");
  }

  const FormatFlags& format() const { return format_; }
  const std::vector<std::string>& include() const { return include_; }
  const std::vector<std::string>& exclude() const { return exclude_; }

  // What is wrong with them as a whole; empty: nothing.
  std::string UsageError() const {
    if (format_.given() || (include_.empty() && exclude_.empty())) return "";
    return include_.empty() ? "--exclude: needs --format" : "--include: needs --format";
  }

  // Nothing where no format is given.
  std::optional<v1::Quantization> Message() const {
    if (!format_.given()) return std::nullopt;
    v1::Quantization message;
    *message.mutable_format() = format_.Spec();
    for (const std::string& pattern : include_) message.add_include(pattern);
    for (const std::string& pattern : exclude_) message.add_exclude(pattern);
    return message;
  }

 private:
  FormatFlags format_;
  std::vector<std::string> include_;
  std::vector<std::string> exclude_;
};

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_QUANTIZE_FLAGS_H_
