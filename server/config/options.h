// The one table of options that flags, files, usage text and printing are driven by.
#ifndef NIBBLE_SERVER_CONFIG_OPTIONS_H_
#define NIBBLE_SERVER_CONFIG_OPTIONS_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/config/checks.h"
#include "server/config/config.h"
#include "server/config/faults.h"

namespace nibble::server {

struct Option {
  using Text = std::string Config::*;
  using Switch = bool Config::*;
  using Int = int Config::*;
  using Int64 = int64_t Config::*;
  using Bytes = uint64_t Config::*;  // every uint64_t is a count of bytes
  using List = std::vector<std::string> Config::*;
  using Models = std::vector<ModelConfig> Config::*;

  std::string_view key;  // the flag has - for _
  std::variant<Text, Switch, Int, Int64, Bytes, List, Models> field;
  std::string_view value;    // what stands for the value in the usage text
  std::string_view meaning;  // one sentence or a few
  uint64_t min = 0;          // of numbers
  uint64_t max = 0;
  Expected (*check)(std::string_view) = nullptr;  // of text, of each element of a list
  bool in_file = true;                            // else a flag alone

  template <typename Member>
  bool Is() const {
    return std::holds_alternative<Member>(field);
  }
};

std::span<const Option> Options();
// "--max-batch-rows"
std::string FlagOf(const Option& option);
// The known word closest to `word` in edits, when it is close; else empty.
std::string Nearest(std::string_view word, const std::vector<std::string>& known);

// A configuration in the making.
struct Draft {
  Config config;
  Faults faults;
  std::map<std::string_view, std::string> where;  // by key: where its value came from
  std::set<std::string_view> faulty;              // keys with a wrong value, which was not taken
};

// Take the text of a value, or of one more element of a list, or report a fault at `where`.
void SetValue(const Option& option, std::string_view text, const std::string& where, Draft* draft);
// `source` is DIR and its options.
void AddModel(const Option& option, std::string_view name, std::string_view source,
              const std::string& where, Draft* draft);
// DIR and its options, as AddModel takes them.
std::string SourceOf(const ModelConfig& model);
// Empties a list or the models.
void Clear(const Option& option, Draft* draft);

// What a value of the option looks like, for a message.
std::string ExpectedOf(const Option& option);
// The value as flags and files write it; empty for lists and models.
std::string ValueText(const Option& option, const Config& config);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_CONFIG_OPTIONS_H_
