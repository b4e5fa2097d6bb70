// JSON texts of a checkpoint: configuration, shard index, quantization state.
#ifndef NIBBLE_SERVER_CHECKPOINT_STRICT_JSON_H_
#define NIBBLE_SERVER_CHECKPOINT_STRICT_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace nibble::checkpoint {

// Parses an object. kInvalidArgument: longer than max_bytes, malformed, no object, nested deeper
// than 64, or a key that appears twice in one object.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, size_t max_bytes);

// The keys of every object in `text`, which ParseJsonObject took, that is the value of a member
// `name`: in the order of the text, which the parsed object does not keep.
std::vector<std::string> KeysInOrder(std::string_view text, std::string_view name);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_STRICT_JSON_H_
