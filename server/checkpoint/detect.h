// Finds the layers of a checkpoint by the tensors that are present, and the dialect of each.
#ifndef NIBBLE_SERVER_CHECKPOINT_DETECT_H_
#define NIBBLE_SERVER_CHECKPOINT_DETECT_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/dialect.h"

namespace nibble::checkpoint {

struct DetectedLayer {
  absl::StatusOr<PlanFunction> plan;  // or why it cannot be served
  std::string tensors;                // what the names of its tensors begin with
};
using DetectedLayers = std::map<std::string, DetectedLayer, std::less<>>;

// Every layer, by name. A refusal, which does not name the layer, is kUnimplemented for a dialect
// that is recognized and not served, and kInvalidArgument for a tensor whose companion is missing.
// Tensors that belong to no layer are left out with a notice.
DetectedLayers DetectLayers(const Context& context);

// kUnimplemented: the configuration's quant_method is not served.
absl::Status CheckMethod(const QuantConfig& config);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_DETECT_H_
