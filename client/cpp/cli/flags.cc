#include "client/cpp/cli/flags.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <numeric>
#include <string_view>
#include <vector>

namespace nibble::cli {
namespace {

// Edits that turn one word into the other.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string Nearest(std::string_view word, const std::vector<std::string>& known) {
  const auto best = std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
    return EditDistance(word, a) < EditDistance(word, b);
  });
  return best == known.end() ? "" : *best;
}

void AppendFlags(const CLI::App& app, std::vector<std::string>& flags) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
}

}  // namespace

void AddConnectionFlags(CLI::App& app, GlobalFlags& flags) {
  app.add_option("--server", flags.server, "Address of the data plane: HOST:PORT or unix:PATH")
      ->envname("NIBBLE_SERVER")
      ->capture_default_str();
  app.add_option("--control", flags.control, "Address of the control plane")
      ->envname("NIBBLE_CONTROL")
      ->capture_default_str();
  app.add_option("--max-message-bytes", flags.max_message_bytes, "Largest message, both ways")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--token-file", flags.token_file, "File whose first line is the bearer token");
  app.add_option("--control-token-file", flags.control_token_file,
                 "The same for the control plane. Default: --token-file");
  app.add_flag("--tls", flags.tls, "Use TLS with the system's roots; the flags below imply it");
  app.add_option("--tls-ca", flags.tls_ca, "PEM file of the certificates to trust");
  app.add_option("--tls-cert", flags.tls_cert, "PEM file of the client's certificate");
  app.add_option("--tls-key", flags.tls_key, "PEM file of the client's key");
  app.add_option("--tls-server-name", flags.tls_server_name,
                 "Name in the server's certificate, where it is not the address's host");
}

std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  for (const std::string& word : app.remaining(true)) {
    if (word.size() > 1 && word[0] == '-') {
      std::vector<std::string> known;
      AppendFlags(app, known);
      for (const CLI::App* command : chosen) AppendFlags(*command, known);
      const std::string name = word.substr(0, word.find('='));
      return fmt::format("{}: unknown flag; the nearest is {}", name, Nearest(name, known));
    }
    if (chosen.empty() && !app.get_subcommands({}).empty()) {
      std::vector<std::string> known;
      for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
      return fmt::format("{}: unknown command; the nearest is {}", word, Nearest(word, known));
    }
  }
  return error.what();
}

}  // namespace nibble::cli
