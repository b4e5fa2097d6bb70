#include "server/config/flags.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "fmt/format.h"

namespace nibble::server {
namespace {

const Option* FindFlag(std::string_view flag) {
  for (const Option& option : Options()) {
    if (FlagOf(option) == flag) return &option;
  }
  return nullptr;
}

void UnknownFlag(std::string_view flag, Faults* faults) {
  std::string near;
  if (faults->listing()) {
    std::vector<std::string> known;
    for (const Option& option : Options()) known.push_back(FlagOf(option));
    near = Nearest(flag, known);
  }
  faults->Add(
      Quote(flag),
      fmt::format("unknown flag{}", near.empty() ? "" : fmt::format("; did you mean {}?", near)));
}

void TakeElements(const FlagUse& use, const std::string& where, Draft* draft) {
  draft->where[use.option->key] = where;
  for (std::string_view rest = use.value; !rest.empty();) {
    const size_t comma = rest.find(',');
    SetValue(*use.option, rest.substr(0, comma), where, draft);
    if (comma == std::string_view::npos) return;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) SetValue(*use.option, rest, where, draft);
  }
}

void TakeModel(const FlagUse& use, const std::string& where, Draft* draft) {
  const size_t equals = use.value.find('=');
  if (equals == std::string::npos) {
    draft->faults.AddMismatch(where, ExpectedOf(*use.option), Quote(use.value));
    draft->faulty.insert(use.option->key);
    return;
  }
  const std::string_view value = use.value;
  AddModel(*use.option, value.substr(0, equals), value.substr(equals + 1), where, draft);
}

}  // namespace

std::vector<FlagUse> SplitFlags(int argc, const char* const* argv, Faults* faults) {
  std::vector<FlagUse> uses;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string_view flag = argument.substr(0, equals);
    if (!flag.starts_with("--") || flag == "--") {
      faults->AddMismatch("command line", "flags alone (--name=value)", Quote(argument));
      continue;
    }
    const Option* option = FindFlag(flag);
    if (option == nullptr) {
      UnknownFlag(flag, faults);
      continue;
    }
    if (equals != std::string_view::npos) {
      uses.push_back({option, std::string(argument.substr(equals + 1))});
    } else if (option->Is<Option::Switch>()) {
      uses.push_back({option, "true"});
    } else if (i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("--")) {
      uses.push_back({option, argv[++i]});
    } else {
      faults->AddMismatch(flag, fmt::format("{}={}", flag, option->value),
                          i + 1 < argc ? fmt::format("the flag {} next", Quote(argv[i + 1]))
                                       : "the end of the command line");
    }
  }
  return uses;
}

void TakeFlags(const std::vector<FlagUse>& uses, Draft* draft) {
  std::set<const Option*> begun;
  for (const FlagUse& use : uses) {
    const std::string where = FlagOf(*use.option);
    if (begun.insert(use.option).second) Clear(*use.option, draft);
    if (use.option->Is<Option::List>()) {
      TakeElements(use, where, draft);
    } else if (use.option->Is<Option::Models>()) {
      TakeModel(use, where, draft);
    } else {
      SetValue(*use.option, use.value, where, draft);
    }
  }
}

}  // namespace nibble::server
