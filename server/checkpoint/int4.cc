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

absl::StatusOr<int64_t> GroupSize(std::optional<int64_t> configured, bool per_layer, int64_t k,
                                  int64_t groups) {
  if (configured) {
    if (*configured != -1 && *configured <= 0) {
      return absl::InvalidArgumentError(
          fmt::format("group_size: expected -1 or a positive number, received {}", *configured));
    }
    const int64_t size = *configured == -1 || *configured > k ? k : *configured;
    if (CeilDiv(k, size) == groups) return size;
    if (!per_layer) {
      return absl::InvalidArgumentError(
          fmt::format("scales: expected {} groups of {} inputs (group_size {}, K {}), received {}",
                      CeilDiv(k, size), size, *configured, k, groups));
    }
  }
  if (const std::optional<int64_t> size = GroupSizeFromShapes(k, groups)) return *size;
  return absl::InvalidArgumentError(
      fmt::format("scales: no group size cuts {} inputs into {} groups", k, groups));
}

std::function<void(CanonicalWeight*)> RepackFromTranspose(
    HostBytes (*unpack)(std::span<const std::byte> words, int64_t n, int64_t k),
    const TensorEntry& words, const TensorEntry& scales, const PackedZeros& zeros) {
  return [unpack, &words, &scales, zeros](CanonicalWeight* out) {
    const WeightSpec& spec = out->spec;
    out->codes = unpack(words.data, spec.n, spec.k);
    out->scales = Transposed(scales.data, scales.shape[0], spec.n, DTypeBytes(spec.scale_dtype));
    if (spec.has_zero_points) out->zero_points = zeros.Unpacked();
  };
}

int32_t GroupAt(const TensorEntry& index, int64_t k) {
  int32_t group = 0;
  std::memcpy(&group, index.data.data() + 4 * k, 4);
  return group;
}

absl::Status AttachGroupIndex(std::string_view tensor, const TensorEntry& index, int64_t groups,
                              CanonicalWeight* weight) {
  WeightSpec& spec = weight->spec;
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
  weight->group_index = Borrow(index);
  return absl::OkStatus();
}

void DescribeZeroPoints(const PackedZeros& zeros, const std::array<int64_t, 16>& counts,
                        WeightSpec* spec) {
  const int64_t eights = counts[static_cast<size_t>((8 - zeros.add) & 15)];
  spec->has_zero_points = eights != zeros.n * zeros.groups;
}

}  // namespace nibble::checkpoint
