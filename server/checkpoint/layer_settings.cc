#include "server/checkpoint/layer_settings.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/checkpoint/config_json.h"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {
namespace {

using nlohmann::json;
using Rule = ModuleList::Rule;

// Patterns are tried on every layer; exact names are looked up.
constexpr size_t kMaxPatterns = 512;

absl::Status TooMany(std::string_view key, size_t count) {
  return absl::InvalidArgumentError(
      fmt::format("{}: expected at most {} entries, received {}", key, kMaxPatterns, count));
}

absl::Status TooManyPatterns(std::string_view key) {
  return absl::InvalidArgumentError(
      fmt::format("{}: expected at most {} patterns, received more", key, kMaxPatterns));
}

struct SkipKey {
  std::string_view key;
  Rule rule;
};
// Where the dialects list what they left in 16 bits. AutoAWQ matches parts of a name, transformers
// starts and ends.
constexpr std::array<SkipKey, 6> kSkipKeys = {{
    {"llm_int8_skip_modules", Rule::kStartOrEnd},
    {"modules_to_not_convert", Rule::kStartOrEnd},
    {"ignored_layers", Rule::kTargets},
    {"ignore_patterns", Rule::kTargets},
    {"ignore", Rule::kTargets},
    {"exclude_modules", Rule::kGlob},
}};

// What the presets of compressed-tensors say of weights (quantization/quant_scheme.py), as far as
// they are served; others say nothing here.
struct Preset {
  std::string_view name;
  int64_t bits;
  std::string_view type;
  bool symmetric;
  std::string_view strategy;
  int64_t group_size;
  int64_t block;
};
constexpr std::array<Preset, 8> kPresets = {{
    {"W4A16", 4, "int", true, "group", 128, 0},
    {"W4A16_ASYM", 4, "int", false, "group", 128, 0},
    {"W4A8", 4, "int", true, "group", 128, 0},
    {"W4AFP8", 4, "int", true, "group", 128, 0},
    {"W8A16", 8, "int", true, "", 0, 0},
    {"FP8", 8, "float", true, "tensor", 0, 0},
    {"FP8_DYNAMIC", 8, "float", true, "channel", 0, 0},
    {"FP8_BLOCK", 8, "float", true, "block", 0, 128},
}};

void ApplyPreset(std::string_view name, Scheme* scheme) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  scheme->has_weights = upper != "UNQUANTIZED";
  for (const Preset& preset : kPresets) {
    if (preset.name != upper) continue;
    scheme->bits = preset.bits;
    scheme->type = preset.type;
    scheme->symmetric = preset.symmetric;
    scheme->strategy = preset.strategy;
    if (preset.group_size > 0) scheme->group_size = preset.group_size;
    if (preset.block > 0) scheme->block = {preset.block, preset.block};
  }
}

// `patterns` counts those of all groups.
absl::Status AddTargets(const std::vector<std::string>& targets, size_t* patterns, Scheme* scheme) {
  for (const std::string& target : targets) {
    scheme->targets.Add(target, Rule::kTargets);
    if (*patterns + scheme->targets.patterns() > kMaxPatterns) return TooManyPatterns("targets");
  }
  *patterns += scheme->targets.patterns();
  return absl::OkStatus();
}

absl::Status ReadWeights(const json& weights, Scheme* scheme) {
  if (!weights.is_object()) return WrongType("config_groups.weights", "an object", weights);
  scheme->has_weights = true;
  NIBBLE_RETURN_IF_ERROR(ReadInt(weights, "num_bits", &scheme->bits));
  NIBBLE_RETURN_IF_ERROR(ReadString(weights, "type", &scheme->type));
  NIBBLE_RETURN_IF_ERROR(ReadBool(weights, "symmetric", &scheme->symmetric));
  NIBBLE_RETURN_IF_ERROR(ReadString(weights, "strategy", &scheme->strategy));
  NIBBLE_RETURN_IF_ERROR(ReadInt(weights, "group_size", &scheme->group_size));
  if (scheme->strategy.empty() && scheme->group_size) {
    scheme->strategy = *scheme->group_size == -1 ? "channel" : "group";
  }
  if (scheme->strategy == "block") {
    NIBBLE_RETURN_IF_ERROR(ReadBlock(weights, "block_structure", &scheme->block));
  }
  if (const json* order = Member(weights, "actorder")) {
    // True is an older spelling of "group", "dynamic" a newer one.
    const std::string text = order->is_string() ? order->get<std::string>() : "";
    const bool by_group = order->is_boolean() && order->get<bool>();
    scheme->column_order = !by_group && text != "group" && text != "dynamic";
  }
  return absl::OkStatus();
}

// The one block shape that all groups with blocks have.
std::optional<BlockShape> CommonBlock(const std::vector<Scheme>& schemes) {
  std::optional<BlockShape> common;
  for (const Scheme& scheme : schemes) {
    if (!scheme.block) continue;
    if (common && *common != *scheme.block) return std::nullopt;
    common = scheme.block;
  }
  return common;
}

}  // namespace

absl::Status ReadSkipLists(const json& object, QuantConfig* config) {
  for (const SkipKey& skip : kSkipKeys) {
    std::vector<std::string> entries;
    NIBBLE_RETURN_IF_ERROR(ReadStrings(object, skip.key, &entries));
    const bool awq = config->method == "awq" && skip.rule == Rule::kStartOrEnd;
    for (const std::string& entry : entries) {
      config->skipped.Add(entry, awq ? Rule::kSubstring : skip.rule);
      if (config->skipped.patterns() > kMaxPatterns) return TooManyPatterns(skip.key);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadDynamic(const json& object, const std::vector<std::string>& order,
                         QuantConfig* config) {
  const json* dynamic = Member(object, "dynamic");
  // compressed-tensors has a boolean of this name.
  if (dynamic == nullptr || !dynamic->is_object()) return absl::OkStatus();
  if (dynamic->size() > kMaxPatterns) return TooMany("dynamic", dynamic->size());
  // `order` has the keys of other members of that name too, some of them the same.
  std::set<std::string_view> taken;
  for (const std::string& key : order) {
    const auto found = dynamic->find(key);
    if (found == dynamic->end() || !taken.insert(key).second) continue;
    const bool excluded = key.starts_with("-:");
    absl::StatusOr<NamePattern> pattern =
        NamePattern::Compile(excluded || key.starts_with("+:") ? key.substr(2) : key);
    if (!pattern.ok()) {
      return absl::UnimplementedError(
          fmt::format("dynamic {}: {}; the bits of its layers stay unknown, and the checkpoint is "
                      "not served",
                      Quoted(key), MessageOf(pattern.status())));
    }
    DynamicRule rule{*std::move(pattern), excluded};
    if (!excluded) {
      if (!found->is_object()) return WrongType("dynamic", "objects of overrides", *found);
      NIBBLE_RETURN_IF_ERROR(ReadInt(*found, "bits", &rule.bits));
      NIBBLE_RETURN_IF_ERROR(ReadInt(*found, "group_size", &rule.group_size));
      NIBBLE_RETURN_IF_ERROR(ReadBool(*found, "sym", &rule.sym));
    }
    config->dynamic.push_back(std::move(rule));
  }
  return absl::OkStatus();
}

absl::Status ReadSchemes(const json& object, QuantConfig* config) {
  const json* groups = Member(object, "config_groups");
  if (groups == nullptr) return absl::OkStatus();
  if (!groups->is_object()) return WrongType("config_groups", "an object", *groups);
  if (groups->size() > kMaxPatterns) return TooMany("config_groups", groups->size());
  size_t patterns = 0;
  for (const auto& [name, group] : groups->items()) {
    Scheme scheme;
    scheme.name = name;
    std::vector<std::string> targets;
    if (group.is_array()) {  // a preset's name with its targets
      NIBBLE_RETURN_IF_ERROR(ReadStrings(*groups, name, &targets));
      ApplyPreset(name, &scheme);
    } else if (group.is_object()) {
      NIBBLE_RETURN_IF_ERROR(ReadStrings(group, "targets", &targets));
      if (const json* weights = Member(group, "weights")) {
        NIBBLE_RETURN_IF_ERROR(ReadWeights(*weights, &scheme));
      }
    } else {
      return WrongType("config_groups", "objects, or lists of targets", group);
    }
    NIBBLE_RETURN_IF_ERROR(AddTargets(targets, &patterns, &scheme));
    config->schemes.push_back(std::move(scheme));
  }
  return absl::OkStatus();
}

int64_t ProgramSize(const QuantConfig& config) {
  int64_t size = config.skipped.program_size();
  for (const DynamicRule& rule : config.dynamic) size += rule.pattern.program_size();
  for (const Scheme& scheme : config.schemes) size += scheme.targets.program_size();
  return size;
}

LayerSettings SettingsOf(const QuantConfig& config, std::string_view layer) {
  LayerSettings settings;
  settings.bits = config.bits;
  settings.group_size = config.group_size;
  settings.sym = config.sym;
  settings.block = config.block;
  settings.skipped = config.skipped.Find(layer) != ModuleList::Match::kNone;
  for (const DynamicRule& rule : config.dynamic) {
    if (!rule.pattern.MatchesStart(layer)) continue;
    settings.skipped = settings.skipped || rule.excluded;
    if (rule.bits) settings.bits = rule.bits;
    if (rule.group_size) settings.group_size = rule.group_size;
    if (rule.sym) settings.sym = rule.sym;
    break;
  }
  ModuleList::Match best = ModuleList::Match::kNone;
  for (const Scheme& scheme : config.schemes) {
    const ModuleList::Match match = scheme.targets.Find(layer);
    if (match <= best) continue;
    best = match;
    settings.scheme = &scheme;
  }
  // With a pattern that cannot be matched, no group is known to be the layer's own.
  const bool unsure =
      best != ModuleList::Match::kExact &&
      std::any_of(config.schemes.begin(), config.schemes.end(),
                  [](const Scheme& scheme) { return !scheme.targets.unusable().empty(); });
  if (settings.skipped || unsure) settings.scheme = nullptr;
  if (settings.scheme != nullptr) {
    if (settings.scheme->block) settings.block = settings.scheme->block;
  } else if (!settings.block) {
    settings.block = CommonBlock(config.schemes);
  }
  return settings;
}

}  // namespace nibble::checkpoint
