// Values of options: from text, and back to text.
#include <algorithm>
#include <charconv>

#include "fmt/format.h"
#include "server/config/options.h"
#include "server/log/escape.h"

namespace nibble::server {
namespace {

// What may follow the directory of a model.
constexpr std::string_view kFuseKey = ",fuse=";
constexpr std::string_view kLayersKey = ",layers=";

// Decimal digits alone, within [min, max].
template <typename T>
bool ParseNumber(const Option& option, std::string_view text, T* number) {
  T parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size() || parsed < 0) return false;
  const auto value = static_cast<uint64_t>(parsed);
  if (value < option.min || value > option.max) return false;
  *number = parsed;
  return true;
}

bool ParseSwitch(std::string_view text, bool* value) {
  if (text != "true" && text != "false") return false;
  *value = text == "true";
  return true;
}

// Text that a configuration can hold and print: UTF-8 without NUL.
Expected CheckText(const Option& option, std::string_view text) {
  if (text.find('\0') != std::string_view::npos || Utf8PrefixBytes(text) != text.size()) {
    return "UTF-8 text without a NUL";
  }
  return option.check == nullptr ? std::nullopt : option.check(text);
}

// Parses into the field's own type; what was expected when that fails.
struct Setter {
  const Option& option;
  std::string_view text;
  Config& config;

  Expected operator()(Option::Text field) const {
    Expected expected = CheckText(option, text);
    if (!expected) config.*field = text;
    return expected;
  }
  Expected operator()(Option::Switch field) const {
    return Unless(ParseSwitch(text, &(config.*field)));
  }
  Expected operator()(Option::Int field) const {
    return Unless(ParseNumber(option, text, &(config.*field)));
  }
  Expected operator()(Option::Int64 field) const {
    return Unless(ParseNumber(option, text, &(config.*field)));
  }
  Expected operator()(Option::Bytes field) const {
    const std::optional<uint64_t> bytes = ParseBytes(text);
    if (!bytes || *bytes < option.min || *bytes > option.max) return ExpectedOf(option);
    config.*field = *bytes;
    return std::nullopt;
  }
  Expected operator()(Option::List field) const {
    std::vector<std::string>& list = config.*field;
    Expected expected = CheckText(option, text);
    if (!expected && std::find(list.begin(), list.end(), text) != list.end()) {
      expected = "each element once";
    }
    if (!expected) list.emplace_back(text);
    return expected;
  }
  Expected operator()(Option::Models) const { return ExpectedOf(option); }

  Expected Unless(bool parsed) const {
    return parsed ? std::nullopt : Expected(ExpectedOf(option));
  }
};

}  // namespace

void SetValue(const Option& option, std::string_view text, const std::string& where, Draft* draft) {
  const Expected expected = std::visit(Setter{option, text, draft->config}, option.field);
  draft->where[option.key] = where;
  if (expected) {
    draft->faults.AddMismatch(where, *expected, Quote(text));
    draft->faulty.insert(option.key);
  }
}

std::string SourceOf(const ModelConfig& model) {
  std::string text = model.directory;
  if (!model.fuse.empty()) text += std::string(kFuseKey) + model.fuse;
  if (!model.layers.empty()) text += std::string(kLayersKey) + model.layers;
  return text;
}

void AddModel(const Option& option, std::string_view name, std::string_view source,
              const std::string& where, Draft* draft) {
  std::vector<ModelConfig>& models = draft->config.*std::get<Option::Models>(option.field);
  draft->where[option.key] = where;
  const auto fault = [&](std::string_view expected, std::string_view received) {
    draft->faults.AddMismatch(where, expected, received);
    draft->faulty.insert(option.key);
  };
  if (const Expected expected = CheckText(option, name)) return fault(*expected, Quote(name));
  // The pattern comes last, since it may hold anything.
  std::string_view directory = source;
  std::string_view fuse;
  std::string_view layers;
  if (const size_t at = directory.find(kLayersKey); at != std::string_view::npos) {
    layers = directory.substr(at + kLayersKey.size());
    directory = directory.substr(0, at);
    if (layers.empty()) return fault("layers=PATTERN with a pattern", Quote(source));
  }
  if (const size_t at = directory.find(kFuseKey); at != std::string_view::npos) {
    fuse = directory.substr(at + kFuseKey.size());
    directory = directory.substr(0, at);
    if (fuse != "required" && fuse != "where-possible") {
      return fault("fuse=required or fuse=where-possible", Quote(fuse));
    }
  }
  if (directory.empty() || directory.find('\0') != std::string_view::npos ||
      Utf8PrefixBytes(source) != source.size()) {
    return fault(fmt::format("the directory of model {} as UTF-8 text", Quote(name)),
                 Quote(directory));
  }
  for (const ModelConfig& model : models) {
    if (model.name == name) return fault("each model name once", Quote(name));
  }
  models.push_back(
      {std::string(name), std::string(directory), std::string(fuse), std::string(layers)});
}

void Clear(const Option& option, Draft* draft) {
  if (const auto* list = std::get_if<Option::List>(&option.field)) {
    (draft->config.**list).clear();
  } else if (const auto* models = std::get_if<Option::Models>(&option.field)) {
    (draft->config.**models).clear();
  }
}

std::string ExpectedOf(const Option& option) {
  if (option.Is<Option::Bytes>()) {
    return fmt::format("a number of bytes from {} to {}, with KiB, MiB, GiB, TiB or no unit",
                       FormatBytes(option.min), FormatBytes(option.max));
  }
  if (option.Is<Option::Int>() || option.Is<Option::Int64>()) {
    return fmt::format("an integer from {} to {}", option.min, option.max);
  }
  if (option.Is<Option::Switch>()) return "true or false";
  if (option.Is<Option::List>()) return "a list";
  if (option.Is<Option::Models>()) return "NAME=DIR";
  return "text";
}

std::string ValueText(const Option& option, const Config& config) {
  if (const auto* text = std::get_if<Option::Text>(&option.field)) return config.**text;
  if (const auto* flag = std::get_if<Option::Switch>(&option.field)) {
    return config.**flag ? "true" : "false";
  }
  if (const auto* number = std::get_if<Option::Int>(&option.field)) {
    return fmt::format("{}", config.**number);
  }
  if (const auto* number = std::get_if<Option::Int64>(&option.field)) {
    return fmt::format("{}", config.**number);
  }
  if (const auto* bytes = std::get_if<Option::Bytes>(&option.field)) {
    return FormatBytes(config.**bytes);
  }
  return "";
}

}  // namespace nibble::server
