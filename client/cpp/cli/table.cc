#include "client/cpp/cli/table.h"

#include <algorithm>

#include "fmt/format.h"

namespace nibble::cli {
namespace {

// The key that a table of flags has for `value`; "unspecified" without one.
template <typename T>
std::string_view NameIn(const std::map<std::string, T>& names, T value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return "unspecified";
}

}  // namespace

Table::Table(std::vector<std::string> columns) {
  for (const std::string& column : columns) {
    align_.push_back(column.at(0));
    titles_.push_back(column.substr(1));
  }
}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(titles_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < titles_.size(); ++i) {
    size_t width = titles_[i].size();
    for (const auto& row : rows_) width = std::max(width, row[i].size());
    widths.push_back(width);
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += "  ";
      line += align_[i] == '>' ? fmt::format("{:>{}}", cells[i], widths[i])
                               : fmt::format("{:<{}}", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  const bool head = std::any_of(titles_.begin(), titles_.end(),
                                [](const std::string& title) { return !title.empty(); });
  if (head) append(titles_);
  for (const auto& row : rows_) append(row);
  return text;
}

std::string FormatPairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Table table({"<", "<"});
  for (const auto& [name, value] : pairs) table.AddRow({name, value});
  return table.ToString();
}

std::string Plural(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string FormatMicros(double micros) {
  if (micros < 1000.0) return fmt::format("{:.0f} us", micros);
  if (micros < 1e6) return fmt::format("{:.3g} ms", micros / 1e3);
  return fmt::format("{:.3g} s", micros / 1e6);
}

const std::map<std::string, v1::DType>& DTypeFlags() {
  static const std::map<std::string, v1::DType> names = {{"f32", v1::DTYPE_F32},
                                                         {"f16", v1::DTYPE_F16},
                                                         {"bf16", v1::DTYPE_BF16},
                                                         {"f8_e4m3", v1::DTYPE_F8_E4M3},
                                                         {"i8", v1::DTYPE_I8}};
  return names;
}

const std::map<std::string, v1::QuantMode>& QuantModeFlags() {
  static const std::map<std::string, v1::QuantMode> names = {
      {"none", v1::QUANT_MODE_NONE},
      {"per-token", v1::QUANT_MODE_PER_TOKEN},
      {"per-group", v1::QUANT_MODE_PER_GROUP},
      {"static", v1::QUANT_MODE_STATIC}};
  return names;
}

const std::map<std::string, v1::WeightFormat>& WeightFormatFlags() {
  static const std::map<std::string, v1::WeightFormat> names = {{"dense", v1::WEIGHT_FORMAT_DENSE},
                                                                {"nf4", v1::WEIGHT_FORMAT_NF4},
                                                                {"fp4", v1::WEIGHT_FORMAT_FP4},
                                                                {"int4", v1::WEIGHT_FORMAT_INT4},
                                                                {"fp8", v1::WEIGHT_FORMAT_FP8}};
  return names;
}

const std::map<std::string, v1::ScaleLayout>& ScaleLayoutFlags() {
  static const std::map<std::string, v1::ScaleLayout> names = {
      {"tensor", v1::SCALE_LAYOUT_TENSOR},
      {"channel", v1::SCALE_LAYOUT_CHANNEL},
      {"block", v1::SCALE_LAYOUT_BLOCK}};
  return names;
}

std::string_view FlagName(v1::DType dtype) { return NameIn(DTypeFlags(), dtype); }
std::string_view FlagName(v1::QuantMode mode) { return NameIn(QuantModeFlags(), mode); }
std::string_view FlagName(v1::WeightFormat format) { return NameIn(WeightFormatFlags(), format); }
std::string_view FlagName(v1::ScaleLayout layout) {
  return layout == v1::SCALE_LAYOUT_UNSPECIFIED ? "tensor" : NameIn(ScaleLayoutFlags(), layout);
}

std::string_view FlagName(v1::WeightState state) {
  static const std::map<std::string, v1::WeightState> names = {
      {"loading", v1::WEIGHT_STATE_LOADING},
      {"ready", v1::WEIGHT_STATE_READY},
      {"draining", v1::WEIGHT_STATE_DRAINING},
      {"failed", v1::WEIGHT_STATE_FAILED}};
  return NameIn(names, state);
}

std::string FormatText(const v1::FormatSpec& format) {
  std::string text(FlagName(format.format()));
  switch (format.format()) {
    case v1::WEIGHT_FORMAT_NF4:
    case v1::WEIGHT_FORMAT_FP4:
      text += fmt::format(" block {}", format.block_size());
      if (format.nested()) text += " nested";
      break;
    case v1::WEIGHT_FORMAT_INT4:
      text +=
          format.group_size() == -1 ? " group all" : fmt::format(" group {}", format.group_size());
      if (format.zero_points()) text += " zero-points";
      if (format.act_order()) text += " act-order";
      break;
    case v1::WEIGHT_FORMAT_FP8:
      text += fmt::format(" {}", FlagName(format.scale_layout()));
      break;
    default:
      break;
  }
  return text;
}

}  // namespace nibble::cli
