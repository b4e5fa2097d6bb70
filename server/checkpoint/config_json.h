// Typed access to the members of a configuration's JSON. Null counts as absent.
#ifndef NIBBLE_SERVER_CHECKPOINT_CONFIG_JSON_H_
#define NIBBLE_SERVER_CHECKPOINT_CONFIG_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace nibble::checkpoint {

// nullptr where it is absent or null.
const nlohmann::json* Member(const nlohmann::json& object, std::string_view key);

absl::Status WrongType(std::string_view key, std::string_view expected,
                       const nlohmann::json& value);

// Leave `out` as it is where the member is absent. kInvalidArgument: a value of another type.
absl::Status ReadInt(const nlohmann::json& object, std::string_view key,
                     std::optional<int64_t>* out);
absl::Status ReadBool(const nlohmann::json& object, std::string_view key, std::optional<bool>* out);
absl::Status ReadString(const nlohmann::json& object, std::string_view key, std::string* out);
absl::Status ReadStrings(const nlohmann::json& object, std::string_view key,
                         std::vector<std::string>* out);
// [rows, columns], or the older "128x128".
absl::Status ReadBlock(const nlohmann::json& object, std::string_view key,
                       std::optional<std::pair<int64_t, int64_t>>* out);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_CONFIG_JSON_H_
