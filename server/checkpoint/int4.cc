#include "server/checkpoint/int4.h"

#include <cstring>

#include "fmt/format.h"

namespace nibble::checkpoint {
namespace {

// The group size that the shapes alone tell: K / G where that is whole, else the one power of two
// that cuts K into G groups.
std::optional<int64_t> GroupSizeFromShapes(int64_t k, int64_t groups) {
  if (k % groups == 0) return k / groups;
  for (int64_t size = 1; size < k; size *= 2) {
    if (CeilDiv(k, size) == groups) return size;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<int64_t> GroupSize(std::optional<int64_t> configured, int64_t k, int64_t groups) {
  if (configured) {
    if (*configured != -1 && *configured <= 0) {
      return absl::InvalidArgumentError(
          fmt::format("group_size: expected -1 or a positive number, received {}", *configured));
    }
    const int64_t size = *configured == -1 || *configured > k ? k : *configured;
    if (CeilDiv(k, size) == groups) return size;
    return absl::InvalidArgumentError(
        fmt::format("scales: expected {} groups of {} inputs (group_size {}, K {}), received {}",
                    CeilDiv(k, size), size, *configured, k, groups));
  }
  if (const std::optional<int64_t> size = GroupSizeFromShapes(k, groups)) return *size;
  return absl::InvalidArgumentError(
      fmt::format("scales: no group size cuts {} inputs into {} groups", k, groups));
}

void AttachFromTranspose(void (*unpack)(std::span<const std::byte> words, int64_t n,
                                        const CodeTile& tile, std::byte* out, int64_t stride,
                                        bool past),
                         const CodeTile& preferred, const TensorEntry& words,
                         const TensorEntry& scales, LayerPlan* plan) {
  const int64_t n = plan->spec.n;
  const int64_t k = plan->spec.k;
  plan->codes = Written(n * CeilDiv(k, 2), [unpack, &words, n, k](std::span<std::byte> out) {
    unpack(words.data, n, {.rows = n, .inputs = k}, out.data(), CeilDiv(k, 2), true);
  });
  plan->codes.write_tile = [unpack, &words, n](const CodeTile& tile, std::byte* out,
                                               int64_t stride) {
    unpack(words.data, n, tile, out, stride, false);
  };
  plan->codes.preferred_tile = preferred;
  const size_t element_bytes = DTypeBytes(plan->spec.scale_dtype);
  plan->scales =
      Written(static_cast<int64_t>(scales.data.size()), [&scales, element_bytes](auto out) {
        Transpose(scales.data, scales.shape[0], scales.shape[1], element_bytes, out);
      });
}

int32_t GroupAt(const TensorEntry& index, int64_t k) {
  int32_t group = 0;
  std::memcpy(&group, index.data.data() + 4 * k, 4);
  return group;
}

absl::Status AttachGroupIndex(std::string_view tensor, const TensorEntry& index, int64_t groups,
                              LayerPlan* plan) {
  WeightSpec& spec = plan->spec;
  bool trivial = true;
  for (int64_t k = 0; k < spec.k; ++k) {
    const int32_t group = GroupAt(index, k);
    if (group < 0 || group >= groups) {
      return absl::InvalidArgumentError(fmt::format(
          "{}[{}]: expected a group in [0, {}), received {}", tensor, k, groups, group));
    }
    trivial = trivial && group == k / spec.group_size;
  }
  if (trivial) return absl::OkStatus();
  spec.has_group_index = true;
  // Copied: what was checked must not change with the file.
  const size_t bytes = static_cast<size_t>(4 * spec.k);
  plan->group_index = Written(4 * spec.k, [&index, bytes](std::span<std::byte> out) {
    std::memcpy(out.data(), index.data.data(), bytes);
  });
  return absl::OkStatus();
}

void AttachZeroPoints(const PackedZeros& zeros, LayerPlan* plan) {
  const int64_t fields = zeros.n * zeros.groups;
  plan->spec.has_zero_points = zeros.Count((8 - zeros.add) & 15) != fields;
  if (!plan->spec.has_zero_points) return;
  plan->zero_points = Written(fields, [zeros](std::span<std::byte> out) { zeros.Unpack(out); });
}

}  // namespace nibble::checkpoint
