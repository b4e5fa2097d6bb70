#include "server/tools/inspect.h"

#include <memory>

#include "nibble/format.h"
#include "nibble/status.h"
#include "server/checkpoint/checkpoint.h"

namespace nibble::tools {

absl::StatusOr<Inspection> Inspect(const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::Checkpoint> opened,
                          checkpoint::Checkpoint::Open(directory));
  Inspection inspection;
  for (const checkpoint::Layer& layer : opened->layers()) {
    inspection.layers.push_back({layer.name, layer.dialect, ToString(layer.spec), layer.spec.n,
                                 layer.spec.k, layer.bytes, ""});
  }
  inspection.notices = opened->notices();
  return inspection;
}

}  // namespace nibble::tools
