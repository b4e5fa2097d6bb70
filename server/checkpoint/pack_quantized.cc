// compressed-tensors "pack-quantized" with 4 bits: group and channel scales, zero points,
// act-order. Layout: compressed-tensors src/compressed_tensors/compressors/pack_quantized/base.py.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fmt/format.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/int4.h"
#include "server/checkpoint/repack.h"

namespace nibble::checkpoint {
namespace {

int64_t Int64At(const TensorEntry& entry, int64_t index) {
  int64_t value = 0;
  std::memcpy(&value, entry.data.data() + 8 * index, 8);
  return value;
}

// N and K, which the packed words do not tell where K is no multiple of eight.
absl::Status ReadShape(const TensorEntry& shape, const TensorEntry& words, WeightSpec* spec) {
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight_shape", shape, {"I64"}));
  NIBBLE_RETURN_IF_ERROR(ExpectShape("weight_shape", shape, {2}));
  spec->n = Int64At(shape, 0);
  spec->k = Int64At(shape, 1);
  if (spec->n <= 0 || spec->k <= 0) {
    return absl::InvalidArgumentError(fmt::format(
        "weight_shape: expected two positive numbers, received [{}, {}]", spec->n, spec->k));
  }
  if (spec->k > 8 && words.shape == std::vector<int64_t>{spec->n, CeilDiv(spec->k, 4)}) {
    return Refused("pack-quantized with 8 bits", "pack-quantized with 4 bits is");
  }
  return ExpectShape("weight_packed", words, {spec->n, CeilDiv(spec->k, 8)});
}

absl::StatusOr<PackedZeros> ReadZeros(const TensorEntry& zeros, int64_t n, int64_t groups) {
  PackedZeros packed = {PackedZeros::Layout::kAlongRows, zeros.data, n, groups, 0};
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight_zero_point", zeros, {"I32", "I8"}));
  if (zeros.dtype == "I32") {
    NIBBLE_RETURN_IF_ERROR(ExpectShape("weight_zero_point", zeros, {CeilDiv(n, 8), groups}));
    return packed;
  }
  NIBBLE_RETURN_IF_ERROR(ExpectShape("weight_zero_point", zeros, {n, groups}));
  for (std::byte b : zeros.data) {
    const auto value = static_cast<int8_t>(b);
    if (value < -8 || value > 7) {
      return absl::InvalidArgumentError(
          fmt::format("weight_zero_point: expected values in [-8, 7], received {}", value));
    }
  }
  packed.layout = PackedZeros::Layout::kSigned;
  return packed;
}

// The library cuts the columns, sorted by group, into runs of group_size; that is the group of each
// column only where every group is full. An index of -1 throughout means that there is none.
absl::Status ReadGroupIndex(const TensorEntry& index, int64_t groups, CanonicalWeight* weight) {
  const WeightSpec& spec = weight->spec;
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight_g_idx", index, {"I32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectShape("weight_g_idx", index, {spec.k}));
  std::vector<int64_t> members(static_cast<size_t>(groups));
  int64_t unused = 0;
  for (int64_t k = 0; k < spec.k; ++k) {
    const int32_t group = GroupAt(index, k);
    if (group == -1) ++unused;
    if (group >= 0 && group < groups) ++members[static_cast<size_t>(group)];
  }
  if (unused == spec.k) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(AttachGroupIndex("weight_g_idx", index, groups, weight));
  const auto odd = std::find_if(members.begin(), members.end(),
                                [&](int64_t count) { return count != spec.group_size; });
  if (spec.has_group_index && odd != members.end()) {
    return absl::InvalidArgumentError(
        fmt::format("weight_g_idx: expected {} inputs in each group, received {} in group {}",
                    spec.group_size, *odd, odd - members.begin()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerPlan> PlanPackQuantized(const Context& context, const std::string& prefix) {
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* words, context.Require(prefix, ".weight_packed"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* scales, context.Require(prefix, ".weight_scale"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* shape, context.Require(prefix, ".weight_shape"));
  for (int64_t bits : context.config.group_bits) {
    if (bits != 4 && context.config.group_bits.size() == 1) {
      return Refused(fmt::format("pack-quantized with {} bits", bits),
                     "pack-quantized with 4 bits is");
    }
  }
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight_packed", *words, {"I32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("weight_packed", *words));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("weight_scale", *scales));

  LayerPlan plan;
  CanonicalWeight& weight = plan.weight;
  WeightSpec& spec = weight.spec;
  spec.format = Format::kInt4;
  NIBBLE_RETURN_IF_ERROR(ReadShape(*shape, *words, &spec));
  NIBBLE_ASSIGN_OR_RETURN(spec.scale_dtype, FloatDType("weight_scale", *scales));
  spec.dtype = spec.scale_dtype;
  const int64_t groups = scales->shape[1];
  NIBBLE_RETURN_IF_ERROR(ExpectShape("weight_scale", *scales, {spec.n, groups}));
  if (spec.k % groups != 0) {
    return absl::InvalidArgumentError(
        fmt::format("weight_scale: expected a number of groups that divides K {}, received {}",
                    spec.k, groups));
  }
  spec.group_size = spec.k / groups;
  if (const TensorEntry* index = context.Find(prefix, ".weight_g_idx")) {
    NIBBLE_RETURN_IF_ERROR(ReadGroupIndex(*index, groups, &weight));
  }
  weight.scales = Borrow(*scales);

  PackedZeros packed;
  const TensorEntry* zeros = context.Find(prefix, ".weight_zero_point");
  if (zeros != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(packed, ReadZeros(*zeros, spec.n, groups));
    DescribeZeroPoints(packed, packed.Histogram(), &spec);
  }
  NIBBLE_RETURN_IF_ERROR(AttachBias(context, prefix, &weight));
  const bool canonical_codes = spec.k % 8 == 0;
  if (canonical_codes) weight.codes = Borrow(*words);
  plan.repack = [words, packed, canonical_codes](CanonicalWeight* out) {
    const WeightSpec& s = out->spec;
    if (!canonical_codes) out->codes = CodesFromRowWords(words->data, s.n, s.k);
    if (s.has_zero_points) out->zero_points = packed.Unpacked();
  };
  return FinishPlan(prefix, "compressed-tensors", std::move(plan));
}

}  // namespace nibble::checkpoint
