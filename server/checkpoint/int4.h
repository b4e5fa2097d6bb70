// What the INT4 dialects share: group sizes, zero points and act-order.
#ifndef NIBBLE_SERVER_CHECKPOINT_INT4_H_
#define NIBBLE_SERVER_CHECKPOINT_INT4_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/repack.h"

namespace nibble::checkpoint {

// Inputs per group of a layer with `k` inputs and `groups` rows of scales. `configured` (-1: the
// whole column) must give that many groups; where nothing is configured the tensors' shapes decide.
// kInvalidArgument: no group size fits.
absl::StatusOr<int64_t> GroupSize(std::optional<int64_t> configured, int64_t k, int64_t groups);

// Sets has_group_index and takes the group of each input from `index`, I32 [K], unless it is just
// k / group_size. kInvalidArgument: a group outside [0, groups).
absl::Status AttachGroupIndex(std::string_view tensor, const TensorEntry& index, int64_t groups,
                              LayerPlan* plan);

// Attaches `zeros` unless every zero point is 8.
void AttachZeroPoints(const PackedZeros& zeros, LayerPlan* plan);

// Attaches the codes and scales of a layer stored as its transpose, [K, N]: codes by `unpack`, one
// of the functions of repack.h, best in tiles like `preferred`; scales [G, N].
void AttachFromTranspose(void (*unpack)(std::span<const std::byte> words, int64_t n,
                                        const CodeTile& tile, std::byte* out, int64_t stride,
                                        bool past),
                         const CodeTile& preferred, const TensorEntry& words,
                         const TensorEntry& scales, LayerPlan* plan);

// The element of `index`, I32, that belongs to input k.
int32_t GroupAt(const TensorEntry& index, int64_t k);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_INT4_H_
