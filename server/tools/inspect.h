// What is in a checkpoint directory, layer by layer. Headers are read and checked; of the tensors
// only the small ones that the geometry depends on (zero points, group indices, maps).
#ifndef NIBBLE_SERVER_TOOLS_INSPECT_H_
#define NIBBLE_SERVER_TOOLS_INSPECT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::tools {

struct InspectedLayer {
  std::string name;     // the tensor prefix: "model.layers.0.mlp.down_proj"
  std::string dialect;  // "gptq", "bitsandbytes", ...; empty where it cannot be served
  // "int4 256x256 group 128 sym"; where it cannot be served, the tensors that are stored:
  // "qweight I32 [16, 8], scales F16 [1, 8]".
  std::string format;
  int64_t n = 0;        // outputs; 1 for a norm vector; 0 where it cannot be served
  int64_t k = 0;        // inputs
  int64_t bytes = 0;    // of the canonical weight, or of the tensors that are stored
  std::string refusal;  // why it cannot be served; empty where it can
};

struct Inspection {
  std::vector<InspectedLayer> layers;  // sorted by name
  std::vector<std::string> notices;    // what was left out or deserves a look, a sentence each
};

// kNotFound: no directory, or no safetensors file in it. kInvalidArgument: a malformed container or
// configuration; names file, tensor and rule.
absl::StatusOr<Inspection> Inspect(const std::string& directory);

}  // namespace nibble::tools

#endif  // NIBBLE_SERVER_TOOLS_INSPECT_H_
