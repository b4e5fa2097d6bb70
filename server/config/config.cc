#include "server/config/config.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "server/config/config_file.h"
#include "server/config/flags.h"
#include "server/config/options.h"
#include "yaml-cpp/emitter.h"

namespace nibble::server {
namespace {

// Checks what no value shows alone.
class WholeCheck {
 public:
  explicit WholeCheck(Draft* draft) : draft_(*draft), config_(draft->config) {}

  void Run() {
    Listeners();
    Needs("tls_cert", config_.tls_cert, "tls_key", config_.tls_key);
    Needs("tls_key", config_.tls_key, "tls_cert", config_.tls_cert);
    Needs("tls_client_ca", config_.tls_client_ca, "tls_cert", config_.tls_cert);
    if (Sound({"max_batch_rows", "max_queue_rows"}) &&
        config_.max_batch_rows > config_.max_queue_rows) {
      draft_.faults.AddMismatch(
          Where("max_batch_rows"),
          fmt::format("at most max_queue_rows, which is {}", config_.max_queue_rows),
          fmt::format("{}", config_.max_batch_rows));
    }
    Devices();
    Quantize();
    Autotune();
  }

 private:
  using Keys = std::initializer_list<std::string_view>;

  // A value that was wrong was not taken: what remains says nothing about the others.
  bool Sound(Keys keys) const {
    return std::none_of(keys.begin(), keys.end(),
                        [this](std::string_view key) { return draft_.faulty.contains(key); });
  }

  std::string Where(std::string_view key) const {
    const auto found = draft_.where.find(key);
    return found == draft_.where.end() ? std::string(key) : found->second;
  }

  void Needs(std::string_view key, const std::string& value, std::string_view other,
             const std::string& other_value) {
    if (!value.empty() && other_value.empty() && Sound({key, other})) {
      draft_.faults.AddMismatch(Where(key), fmt::format("{} with it", other),
                                fmt::format("{} alone", Quote(value)));
    }
  }

  // Two gRPC listeners may share a port without an error and would split its connections.
  void Listeners() {
    std::vector<std::pair<std::string_view, const std::string*>> addresses;
    for (const std::string& address : config_.listen) addresses.emplace_back("listen", &address);
    addresses.emplace_back("control_listen", &config_.control_listen);
    addresses.emplace_back("metrics_listen", &config_.metrics_listen);
    if (config_.listen.empty() && Sound({"listen"})) {
      draft_.faults.AddMismatch(Where("listen"), "at least one address", "none");
    }
    for (size_t i = 0; i < addresses.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const auto& [key, address] = addresses[i];
        const auto& [other, other_address] = addresses[j];
        if (Sound({key, other}) && Collide(*address, *other_address)) {
          draft_.faults.AddMismatch(Where(key),
                                    fmt::format("another port than that of {}, which is {}", other,
                                                Quote(*other_address)),
                                    Quote(*address));
        }
      }
    }
  }

  void Devices() {
    if (config_.backend == "auto" || !Sound({"backend", "device"})) return;
    for (const std::string& id : config_.device) {
      if (!id.starts_with(config_.backend + ":")) {
        draft_.faults.AddMismatch(
            Where("device"), fmt::format("devices of the backend {}", config_.backend), Quote(id));
      }
    }
  }

  void Quantize() {
    if (!Sound({"model", "quantize"})) return;
    std::set<std::string_view> seen;
    for (const std::string& element : config_.quantize) {
      const std::string_view name = SplitQuantize(element).model;
      const bool configured = std::any_of(config_.model.begin(), config_.model.end(),
                                          [&](const ModelConfig& m) { return m.name == name; });
      if (!configured) {
        draft_.faults.AddMismatch(Where("quantize"), "the name of a configured model", Quote(name));
      } else if (!seen.insert(name).second) {
        draft_.faults.AddMismatch(Where("quantize"), "each model once", Quote(name));
      }
    }
  }

  void Autotune() {
    if (config_.autotune && config_.batch_invariant) {
      draft_.faults.AddMismatch(Where("autotune"), "no batch_invariant with it", "both");
    }
    if (!config_.autotune_cache.empty() && !config_.autotune &&
        Sound({"autotune", "autotune_cache"})) {
      draft_.faults.AddMismatch(Where("autotune_cache"), "autotune with it",
                                fmt::format("{} alone", Quote(config_.autotune_cache)));
    }
  }

  Draft& draft_;
  const Config& config_;
};

std::string DefaultText(const Option& option) {
  if (option.Is<Option::Switch>()) return "";
  const Config defaults;
  const auto* list = std::get_if<Option::List>(&option.field);
  const std::string text = list != nullptr ? fmt::format("{}", fmt::join(defaults.**list, ","))
                                           : ValueText(option, defaults);
  return fmt::format(" Default: {}.", text.empty() ? "none" : text);
}

}  // namespace

absl::StatusOr<Config> ParseConfig(int argc, const char* const* argv) {
  Draft draft;
  const std::vector<FlagUse> uses = SplitFlags(argc, argv, &draft.faults);
  // Asked for help, the rest of the command line does not matter.
  for (const FlagUse& use : uses) {
    draft.config.help |= use.option->key == "help" && use.value == "true";
    draft.config.version |= use.option->key == "version" && use.value == "true";
  }
  if (draft.config.help || draft.config.version) return draft.config;

  const auto last = std::find_if(uses.rbegin(), uses.rend(),
                                 [](const FlagUse& use) { return use.option->key == "config"; });
  if (last != uses.rend()) ReadConfigFile(last->value, &draft);
  TakeFlags(uses, &draft);
  WholeCheck(&draft).Run();
  if (absl::Status status = draft.faults.ToStatus(); !status.ok()) return status;
  return std::move(draft.config);
}

std::string HelpText() {
  std::string text =
      "Usage: nibbled [--name=value | --name value]...\n"
      "\n"
      "Runs quantized linear layers for remote callers over gRPC. Sizes in bytes take KiB, MiB, "
      "GiB\n"
      "and TiB. The last use of a flag counts; lists are separated by commas or repeated. In a "
      "file\n"
      "the keys are the flags with _ for -.\n"
      "\n";
  for (const Option& option : Options()) {
    text += fmt::format("  {}{}{}\n      {}{}\n", FlagOf(option), option.value.empty() ? "" : "=",
                        option.value, option.meaning, DefaultText(option));
  }
  return text;
}

std::string ToYaml(const Config& config) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const Option& option : Options()) {
    if (!option.in_file) continue;
    out << YAML::Key << std::string(option.key) << YAML::Value;
    if (const auto* list = std::get_if<Option::List>(&option.field)) {
      out << YAML::Flow << YAML::BeginSeq;
      for (const std::string& element : config.**list) out << YAML::DoubleQuoted << element;
      out << YAML::EndSeq;
    } else if (const auto* models = std::get_if<Option::Models>(&option.field)) {
      if ((config.**models).empty()) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const ModelConfig& model : config.**models) {
        out << YAML::Key << YAML::DoubleQuoted << model.name;
        out << YAML::Value << YAML::DoubleQuoted << SourceOf(model);
      }
      out << YAML::EndMap;
    } else if (option.Is<Option::Text>()) {
      out << YAML::DoubleQuoted << ValueText(option, config);
    } else {
      out << ValueText(option, config);
    }
  }
  out << YAML::EndMap << YAML::Newline;
  return out.c_str();
}

}  // namespace nibble::server
