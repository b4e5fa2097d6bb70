// The parts of a configuration that differ from layer to layer: lists of exceptions, GPTQModel's
// `dynamic`, the groups of compressed-tensors.
#ifndef NIBBLE_SERVER_CHECKPOINT_LAYER_SETTINGS_H_
#define NIBBLE_SERVER_CHECKPOINT_LAYER_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/quant_config.h"

namespace nibble::checkpoint {

// Each reads its part of a quantization_config into `config`. kInvalidArgument names the key.
absl::Status ReadSkipLists(const nlohmann::json& object, QuantConfig* config);
// `order`: the keys of `dynamic` as the file has them. kUnimplemented: a pattern that cannot be
// matched, which leaves the bits of its layers unknown.
absl::Status ReadDynamic(const nlohmann::json& object, const std::vector<std::string>& order,
                         QuantConfig* config);
absl::Status ReadSchemes(const nlohmann::json& object, QuantConfig* config);

// Of all expressions of `config` together: steps for a byte of a layer's name at most.
int64_t ProgramSize(const QuantConfig& config);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_LAYER_SETTINGS_H_
