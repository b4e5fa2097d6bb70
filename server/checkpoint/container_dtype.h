// Element types of the safetensors container and the bytes of a tensor.
#ifndef NIBBLE_SERVER_CHECKPOINT_CONTAINER_DTYPE_H_
#define NIBBLE_SERVER_CHECKPOINT_CONTAINER_DTYPE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::checkpoint {

// Position in the container's order of types, low to high; files are written from high to low.
// -1 for an unknown name.
int DTypeRank(std::string_view dtype);

// Bytes of `shape` elements of `dtype`. kInvalidArgument: unknown type, negative dimension, a
// product beyond 63 bits, or no whole number of bytes (an odd count of F4).
absl::StatusOr<int64_t> TensorBytes(std::string_view dtype, const std::vector<int64_t>& shape);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_CONTAINER_DTYPE_H_
