#include "server/config/faults.h"

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "server/log/escape.h"

namespace nibble::server {
namespace {

constexpr size_t kMaxQuotedBytes = 200;

}  // namespace

std::string Quote(std::string_view text) {
  std::string quoted = "\"";
  AppendEscaped(text.substr(0, kMaxQuotedBytes), &quoted);
  quoted += '"';
  if (text.size() > kMaxQuotedBytes) quoted += fmt::format("... ({} bytes)", text.size());
  return quoted;
}

void Faults::Add(std::string_view where, std::string_view what) {
  if (listing()) lines_.push_back(fmt::format("{}: {}", where, what));
  ++count_;
}

void Faults::AddMismatch(std::string_view where, std::string_view expected,
                         std::string_view received) {
  Add(where, fmt::format("expected {}, received {}", expected, received));
}

absl::Status Faults::ToStatus() const {
  if (empty()) return absl::OkStatus();
  std::string message = fmt::format("{}", fmt::join(lines_, "\n"));
  if (count_ > lines_.size()) {
    message += fmt::format("\nand {} more faults", count_ - lines_.size());
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace nibble::server
