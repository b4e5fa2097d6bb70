// Where the tensors of a file that is to be written lie, in the strict form: sorted, padded,
// aligned, without a hole.
#ifndef NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_LAYOUT_H_
#define NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/safetensors_writer.h"

namespace nibble::checkpoint {

struct SafetensorsLayout {
  struct Place {
    size_t index = 0;     // of the declared tensor
    uint64_t offset = 0;  // in the file
    uint64_t bytes = 0;
  };
  std::string prologue;       // the length and the padded header
  std::vector<Place> places;  // in file order
};

// kInvalidArgument: an unknown type, a shape that overflows, a name that is reserved, appears twice
// or is not UTF-8, or a header beyond the format's limit.
absl::StatusOr<SafetensorsLayout> PlanSafetensors(
    const std::vector<TensorDeclaration>& tensors,
    const std::map<std::string, std::string>& metadata);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_LAYOUT_H_
