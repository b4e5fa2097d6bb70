#include "client/cpp/cli/session.h"

#include <fstream>
#include <ostream>
#include <sstream>

#include "client/cpp/cli/table.h"
#include "fmt/format.h"

namespace nibble::cli {
namespace {

// The first line of a token file that is not empty.
absl::StatusOr<std::string> ReadToken(const std::string& path) {
  if (path.empty()) return std::string();
  const absl::StatusOr<std::string> text = ReadTextFile(path);
  if (!text.ok()) return text.status();
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (const size_t end = line.find_last_not_of(" \t\r"); end != std::string::npos) {
      return line.substr(0, end + 1);
    }
  }
  return absl::InvalidArgumentError(fmt::format("{}: expected a token, the file is empty", path));
}

}  // namespace

absl::StatusOr<client::ClientOptions> Session::Options() const {
  client::ClientOptions options;
  options.address = flags_.server;
  options.control_address = flags_.control;
  options.max_message_bytes = flags_.max_message_bytes;
  if (flags_.deadline_ms) options.deadline = std::chrono::milliseconds(*flags_.deadline_ms);
  options.tls.enabled = flags_.tls || !flags_.tls_ca.empty() || !flags_.tls_cert.empty() ||
                        !flags_.tls_key.empty() || !flags_.tls_server_name.empty();
  options.tls.ca_file = flags_.tls_ca;
  options.tls.cert_file = flags_.tls_cert;
  options.tls.key_file = flags_.tls_key;
  options.tls.server_name = flags_.tls_server_name;
  absl::StatusOr<std::string> token = ReadToken(flags_.token_file);
  if (!token.ok()) return token.status();
  options.bearer_token = *std::move(token);
  absl::StatusOr<std::string> control_token = ReadToken(flags_.control_token_file);
  if (!control_token.ok()) return control_token.status();
  options.control_bearer_token = *std::move(control_token);
  return options;
}

absl::StatusOr<std::unique_ptr<client::Client>> Session::Connect() const {
  absl::StatusOr<client::ClientOptions> options = Options();
  if (!options.ok()) return options.status();
  return client::Client::Create(*std::move(options));
}

client::CallOptions Session::Call() const {
  client::CallOptions options;
  if (flags_.deadline_ms) options.deadline = std::chrono::milliseconds(*flags_.deadline_ms);
  return options;
}

void Session::Print(const Json& document, std::string_view text) const {
  if (flags_.json) {
    // A name that is not UTF-8 is shown with replacements rather than not at all.
    io_.out << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    io_.out << text;
  }
  io_.out.flush();
}

void Session::Note(std::string_view text) const { io_.err << text << '\n'; }

int Session::Mismatch(std::string_view message) const {
  io_.err << ErrorLine("MISMATCH", message) << '\n';
  return 1;
}

std::string ErrorLine(std::string_view code, std::string_view message) {
  std::string line = fmt::format("nibble: {}: ", code);
  for (const char c : message) {
    if (c == '\n') {
      line += "; ";
    } else if (c != '\r') {
      line += c;
    }
  }
  return line;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError(fmt::format("cannot read the file {}", path));
  }
  return content.str();
}

Progress::~Progress() {
  if (open_line_) io_.err << std::endl;
}

void Progress::Update(int64_t bytes_done, int64_t bytes_total, std::string_view detail) {
  const double share =
      bytes_total > 0 ? static_cast<double>(bytes_done) / static_cast<double>(bytes_total) : 1.0;
  const auto step = static_cast<int64_t>(share * (io_.err_is_terminal ? 1000.0 : 10.0));
  if (step == shown_) return;
  shown_ = step;
  const std::string line =
      fmt::format("{} {:3.0f} %  {} of {}{}{}", label_, share * 100.0, FormatBytes(bytes_done),
                  FormatBytes(bytes_total), detail.empty() ? "" : "  ", detail);
  if (io_.err_is_terminal) {
    io_.err << "\r\033[K" << line << std::flush;
    open_line_ = true;
  } else {
    io_.err << line << std::endl;
  }
}

}  // namespace nibble::cli
