// What every command works with: where it prints, the flags that all share, and the connection.
#ifndef NIBBLE_CLIENT_CLI_SESSION_H_
#define NIBBLE_CLIENT_CLI_SESSION_H_

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nibble/client.h"
#include "nlohmann/json.hpp"

namespace nibble::cli {

using Json = nlohmann::ordered_json;

// Results go to `out`; progress and errors to `err`.
struct Io {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;
};

struct GlobalFlags {
  std::string server = "127.0.0.1:50051";
  std::string control = "127.0.0.1:50052";
  std::optional<int64_t> deadline_ms;
  int64_t max_message_bytes = int64_t{256} << 20;
  std::string token_file;
  std::string control_token_file;
  bool tls = false;
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_server_name;
  bool json = false;
};

class Session {
 public:
  Session(const Io& io, const GlobalFlags& flags) : io_(io), flags_(flags) {}

  const Io& io() const { return io_; }
  const GlobalFlags& flags() const { return flags_; }

  // What the flags say, token files read.
  absl::StatusOr<client::ClientOptions> Options() const;
  absl::StatusOr<std::unique_ptr<client::Client>> Connect() const;
  // --deadline-ms for calls that have no deadline of their own.
  client::CallOptions Call() const;

  // The one document of --json, or else `text`.
  void Print(const Json& document, std::string_view text) const;
  // One line on stderr.
  void Note(std::string_view text) const;
  // Reports a check that failed; the exit code for it.
  int Mismatch(std::string_view message) const;

 private:
  const Io& io_;
  const GlobalFlags& flags_;
};

// "nibble: CODE: message" on one line.
std::string ErrorLine(std::string_view code, std::string_view message);

// The whole file, or kInvalidArgument with its name.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// How far a long transfer is: one line that is rewritten on a terminal, else a line per tenth.
class Progress {
 public:
  Progress(const Io& io, std::string label) : io_(io), label_(std::move(label)) {}
  // Ends the line that is being rewritten.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void Update(int64_t bytes_done, int64_t bytes_total, std::string_view detail);

 private:
  const Io& io_;
  std::string label_;
  int64_t shown_ = -1;
  bool open_line_ = false;
};

}  // namespace nibble::cli

#endif  // NIBBLE_CLIENT_CLI_SESSION_H_
