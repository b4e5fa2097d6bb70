#include "server/checkpoint/config_json.h"

#include <charconv>
#include <limits>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {

using nlohmann::json;

const json* Member(const json& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::Status WrongType(std::string_view key, std::string_view expected, const json& value) {
  return absl::InvalidArgumentError(
      fmt::format("{}: expected {}, received {}", key, expected, value.type_name()));
}

absl::Status ReadInt(const json& object, std::string_view key, std::optional<int64_t>* out) {
  const json* value = Member(object, key);
  if (value == nullptr) return absl::OkStatus();
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<uint64_t>() > kMax)) {
    return WrongType(key, "an integer", *value);
  }
  *out = value->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadBool(const json& object, std::string_view key, std::optional<bool>* out) {
  const json* value = Member(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return WrongType(key, "a boolean", *value);
  *out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadString(const json& object, std::string_view key, std::string* out) {
  const json* value = Member(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return WrongType(key, "a string", *value);
  *out = value->get<std::string>();
  return absl::OkStatus();
}

absl::Status ReadStrings(const json& object, std::string_view key, std::vector<std::string>* out) {
  const json* value = Member(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_array()) return WrongType(key, "a list of names", *value);
  for (const json& element : *value) {
    if (!element.is_string()) return WrongType(key, "a list of names", element);
    out->push_back(element.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadBlock(const json& object, std::string_view key,
                       std::optional<std::pair<int64_t, int64_t>>* out) {
  const json* value = Member(object, key);
  if (value == nullptr) return absl::OkStatus();
  std::pair<int64_t, int64_t> block{0, 0};
  if (value->is_array() && value->size() == 2 && (*value)[0].is_number_integer() &&
      (*value)[1].is_number_integer()) {
    block = {(*value)[0].get<int64_t>(), (*value)[1].get<int64_t>()};
  } else if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    const char* end = text.data() + text.size();
    const auto rows = std::from_chars(text.data(), end, block.first);
    if (rows.ec == std::errc() && rows.ptr != end && *rows.ptr == 'x') {
      const auto columns = std::from_chars(rows.ptr + 1, end, block.second);
      if (columns.ec != std::errc() || columns.ptr != end) block.second = 0;
    }
  } else {
    return WrongType(key, "[rows, columns]", *value);
  }
  if (block.first <= 0 || block.second <= 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected two positive integers, received {}", key,
                    Quoted(value->dump(-1, ' ', true, json::error_handler_t::replace))));
  }
  *out = block;
  return absl::OkStatus();
}

}  // namespace nibble::checkpoint
