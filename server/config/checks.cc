#include "server/config/checks.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "fmt/format.h"
#include "nibble/quantize.h"

namespace nibble::server {
namespace {

constexpr int kMaxPort = 65535;
constexpr std::string_view kUnix = "unix:";
constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr size_t kMaxHostBytes = 253;  // of a domain name
constexpr size_t kMaxModelNameBytes = 256;

constexpr std::array<std::pair<std::string_view, int>, 4> kByteUnits = {
    {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool IsPort(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return !text.empty() && IsDigit(text[0]) && error == std::errc() &&
         end == text.data() + text.size() && port <= kMaxPort;
}

bool IsIpAddress(int family, std::string_view text) {
  std::array<unsigned char, sizeof(in6_addr)> parsed;
  return inet_pton(family, std::string(text).c_str(), parsed.data()) == 1;
}

bool IsHost(std::string_view text) {
  if (text.empty() || text.size() > kMaxHostBytes) return false;
  if (std::all_of(text.begin(), text.end(), [](char c) { return IsDigit(c) || c == '.'; })) {
    return IsIpAddress(AF_INET, text);
  }
  return std::all_of(text.begin(), text.end(), [](char c) {
    return IsDigit(c) || IsLetter(c) || c == '.' || c == '-' || c == '_';
  });
}

// host:port or [v6]:port
bool IsHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || !IsPort(text.substr(colon + 1))) return false;
  const std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    return IsIpAddress(AF_INET6, host.substr(1, host.size() - 2));
  }
  return IsHost(host);
}

Expected OneOf(std::string_view text, std::initializer_list<std::string_view> words) {
  if (std::find(words.begin(), words.end(), text) != words.end()) return std::nullopt;
  std::string expected;
  size_t left = words.size();
  for (const std::string_view word : words) {
    --left;
    expected += word;
    expected += left > 1 ? ", " : left == 1 ? " or " : "";
  }
  return expected;
}

bool IsWildcard(std::string_view host) { return host == "0.0.0.0" || host == "[::]"; }

}  // namespace

Expected CheckAddress(std::string_view text) {
  if (text.starts_with(kUnix)) {
    std::string_view path = text.substr(kUnix.size());
    if (path.starts_with("//")) path.remove_prefix(2);
    if (!path.empty() && path.size() <= kMaxUnixPathBytes) return std::nullopt;
    return fmt::format("unix:PATH with a path of 1 to {} bytes", kMaxUnixPathBytes);
  }
  if (IsHostPort(text)) return std::nullopt;
  return fmt::format("HOST:PORT, [IPV6]:PORT or unix:PATH, with a port from 0 to {}", kMaxPort);
}

Expected CheckMetricsAddress(std::string_view text) {
  if (text.empty() || IsHostPort(text)) return std::nullopt;
  return fmt::format("HOST:PORT or [IPV6]:PORT with a port from 0 to {}, or nothing", kMaxPort);
}

Expected CheckBackend(std::string_view text) { return OneOf(text, {"auto", "cpu", "cuda"}); }

Expected CheckLogLevel(std::string_view text) {
  return OneOf(text, {"debug", "info", "warn", "error"});
}

Expected CheckDeviceId(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    const std::string_view kind = text.substr(0, colon);
    const std::string_view index = text.substr(colon + 1);
    const bool canonical = index == "0" || !index.starts_with('0');
    if ((kind == "cpu" || kind == "cuda") && IsPort(index) && canonical) return std::nullopt;
  }
  return "a device id such as cpu:0 or cuda:1";
}

Expected CheckModelName(std::string_view text) {
  const auto legal = [](char c) {
    return IsLetter(c) || IsDigit(c) || c == '.' || c == '_' || c == '-' || c == '/';
  };
  bool ok = text.size() <= kMaxModelNameBytes && std::all_of(text.begin(), text.end(), legal);
  for (std::string_view rest = text; ok;) {
    const size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    ok = !part.empty() && part != "." && part != "..";
    if (slash == std::string_view::npos) break;
    rest.remove_prefix(slash + 1);
  }
  if (ok) return std::nullopt;
  return fmt::format(
      "a model name of 1 to {} letters, digits and . _ - /, without empty, . or .. parts",
      kMaxModelNameBytes);
}

ModelFormat SplitQuantize(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return {text, {}};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Expected CheckQuantize(std::string_view text) {
  const ModelFormat parts = SplitQuantize(text);
  if (CheckModelName(parts.model)) return "NAME=FORMAT with the name of a configured model";
  const StatusOr<QuantizeTarget> target = ParseQuantizeTarget(parts.format);
  if (target.ok()) return std::nullopt;
  return fmt::format("NAME=FORMAT; {}", MessageOf(target.status()));
}

HostPort SplitAddress(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (address.starts_with(kUnix) || colon == std::string_view::npos) return {address, -1};
  HostPort parts{address.substr(0, colon), -1};
  std::from_chars(address.data() + colon + 1, address.data() + address.size(), parts.port);
  return parts;
}

bool Collide(std::string_view a, std::string_view b) {
  const HostPort left = SplitAddress(a);
  const HostPort right = SplitAddress(b);
  if (left.port != right.port || left.port == 0 || a.empty()) return false;
  return left.host == right.host ||
         (left.port > 0 && (IsWildcard(left.host) || IsWildcard(right.host)));
}

std::optional<uint64_t> ParseBytes(std::string_view text) {
  int shift = 0;
  for (const auto& [unit, unit_shift] : kByteUnits) {
    if (text.ends_with(unit)) {
      shift = unit_shift;
      text.remove_suffix(unit.size());
      break;
    }
  }
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (count > UINT64_MAX >> shift) return std::nullopt;
  return count << shift;
}

std::string FormatBytes(uint64_t bytes) {
  for (const auto& [unit, shift] : kByteUnits) {
    const uint64_t count = bytes >> shift;
    if (count > 0 && count << shift == bytes) return fmt::format("{}{}", count, unit);
  }
  return fmt::format("{}", bytes);
}

}  // namespace nibble::server
