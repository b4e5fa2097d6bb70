// Finds the layers of a checkpoint by the tensors that are present, and the dialect of each.
#ifndef NIBBLE_SERVER_CHECKPOINT_DETECT_H_
#define NIBBLE_SERVER_CHECKPOINT_DETECT_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/dialect.h"

namespace nibble::checkpoint {

// The plan function of each layer, by its prefix. kUnimplemented: a dialect that is recognized and
// not served. kInvalidArgument: a tensor whose companion is missing. Both name the layer. Tensors
// that belong to no layer are left out with a notice.
absl::StatusOr<std::map<std::string, PlanFunction>> DetectLayers(const Context& context);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_DETECT_H_
