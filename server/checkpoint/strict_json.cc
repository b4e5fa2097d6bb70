#include "server/checkpoint/strict_json.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, size_t max_bytes) {
  using Event = nlohmann::json::parse_event_t;
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("JSON of {} bytes, expected at most {}", text.size(), max_bytes));
  }
  if (text.find('\0') != std::string_view::npos) {  // the library would stop reading there
    return absl::InvalidArgumentError("JSON holds a NUL byte");
  }
  std::string fault;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    if (!fault.empty()) return false;
    if (depth > kMaxDepth) {
      fault = fmt::format("JSON nested deeper than {}", kMaxDepth);
      return false;
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end && !keys.empty()) keys.pop_back();
    if (event == Event::key && !keys.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        fault = fmt::format("JSON key {} appears twice", Quoted(key));
        return false;
      }
    }
    return true;
  };
  nlohmann::json value = nlohmann::json::parse(text.begin(), text.end(), watch, false);
  if (!fault.empty()) return absl::InvalidArgumentError(fault);
  if (value.is_discarded()) return absl::InvalidArgumentError("not valid UTF-8 JSON");
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        fmt::format("expected a JSON object, received {}", value.type_name()));
  }
  return value;
}

std::vector<std::string> KeysInOrder(std::string_view text, std::string_view name) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::string> path;  // the key that was last read at each depth
  std::vector<std::string> keys;
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    if (event != Event::key) return true;
    const auto level = static_cast<size_t>(depth);
    path.resize(level + 1);
    path[level] = parsed.get_ref<const std::string&>();
    if (level > 0 && path[level - 1] == name) keys.push_back(path[level]);
    return true;
  };
  const nlohmann::json discarded =
      nlohmann::json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  return keys;
}

}  // namespace nibble::checkpoint
