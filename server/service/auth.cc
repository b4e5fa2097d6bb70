#include "server/service/auth.h"

#include <algorithm>
#include <fstream>

#include "fmt/format.h"

namespace nibble::server {
namespace {

constexpr std::string_view kScheme = "Bearer ";

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace

absl::StatusOr<TokenSet> TokenSet::FromFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(
        fmt::format("token file '{}': expected a readable file", path));
  }
  TokenSet set;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    if (!std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c <= '~'; })) {
      return absl::InvalidArgumentError(fmt::format(
          "token file '{}' line {}: expected printable characters without spaces", path, number));
    }
    set.tokens_.push_back(line);
  }
  if (set.tokens_.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("token file '{}': expected at least one token, received none", path));
  }
  return set;
}

bool TokenSet::Contains(std::string_view token) const {
  bool found = false;
  for (const std::string& known : tokens_) found |= EqualInConstantTime(known, token);
  return found;
}

absl::Status Authorize(const grpc::ServerContextBase& context, const AuthTokens& tokens,
                       Plane plane) {
  const bool is_data = plane == Plane::kData;
  const TokenSet& own = is_data ? tokens.data : tokens.control;
  if (own.empty()) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found == metadata.end()) {
    return absl::UnauthenticatedError("authorization: expected 'Bearer TOKEN'; received none");
  }
  const std::string_view value(found->second.data(), found->second.size());
  if (!value.starts_with(kScheme)) {
    return absl::UnauthenticatedError(
        "authorization: expected 'Bearer TOKEN'; received another scheme");
  }
  const std::string_view token = value.substr(kScheme.size());
  if (own.Contains(token)) return absl::OkStatus();
  if ((is_data ? tokens.control : tokens.data).Contains(token)) {
    return absl::PermissionDeniedError(fmt::format(
        "authorization: the token is not valid for the {} plane", is_data ? "data" : "control"));
  }
  return absl::UnauthenticatedError("authorization: the token is not known");
}

}  // namespace nibble::server
