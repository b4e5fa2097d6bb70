// Flags that several commands take.
#ifndef NIBBLE_CLIENT_CLI_FLAGS_H_
#define NIBBLE_CLIENT_CLI_FLAGS_H_

#include <CLI/App.hpp>
#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <map>
#include <string>

#include "client/cpp/cli/session.h"
#include "client/cpp/cli/table.h"
#include "fmt/format.h"

namespace nibble::cli {

// A flag whose value is one of `names`, in any case; `allowed` narrows them.
template <typename T>
CLI::Option* AddNamedFlag(CLI::App& app, const std::string& flag, T& target,
                          const std::map<std::string, T>& names, const std::string& description,
                          std::initializer_list<T> allowed = {}) {
  std::map<std::string, T> accepted;
  std::string list;
  for (const auto& [name, value] : names) {
    const bool fits =
        allowed.size() == 0 || std::find(allowed.begin(), allowed.end(), value) != allowed.end();
    if (!fits) continue;
    accepted[name] = value;
    list += (list.empty() ? "" : ", ") + name;
  }
  return app
      .add_option_function<std::string>(
          flag,
          [&target, accepted, list, flag](std::string word) {
            std::transform(word.begin(), word.end(), word.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
            const auto found = accepted.find(word);
            if (found == accepted.end()) {
              throw CLI::ValidationError(
                  flag, fmt::format("expected one of {}; received {}", list, word));
            }
            target = found->second;
          },
          fmt::format("{} ({})", description, list))
      ->type_name("NAME");
}

// The flags that say where the server is and how to reach it: addresses, message limit, tokens,
// TLS.
void AddConnectionFlags(CLI::App& app, GlobalFlags& flags);

// The line for arguments that do not parse: an unknown flag or command first, since what else is
// wrong often follows from it.
std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_FLAGS_H_
