// compressed-tensors "pack-quantized" with 4 bits: group and channel scales, zero points,
// act-order. Layout: compressed-tensors src/compressed_tensors/compressors/pack_quantized/base.py.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fmt/format.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/int4.h"
#include "server/checkpoint/quoted.h"
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
// column only where every group is full. It takes an index that holds -1 anywhere for none
// (quantization/lifecycle/forward.py).
absl::Status ReadGroupIndex(const Context& context, const std::string& prefix,
                            const TensorEntry& index, int64_t groups, LayerPlan* plan) {
  const WeightSpec& spec = plan->spec;
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight_g_idx", index, {"I32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectShape("weight_g_idx", index, {spec.k}));
  std::vector<int64_t> members(static_cast<size_t>(groups));
  int64_t unused = 0;
  for (int64_t k = 0; k < spec.k; ++k) {
    const int32_t group = GroupAt(index, k);
    if (group == -1) ++unused;
    if (group >= 0 && group < groups) ++members[static_cast<size_t>(group)];
  }
  if (unused > 0) {
    if (unused < spec.k) {
      context.notices->Add("weight_g_idx holds -1 for some inputs, so that none of it is used",
                           fmt::format("{} ({} of {})", prefix, unused, spec.k));
    }
    return absl::OkStatus();
  }
  NIBBLE_RETURN_IF_ERROR(AttachGroupIndex("weight_g_idx", index, groups, plan));
  const auto odd = std::find_if(members.begin(), members.end(),
                                [&](int64_t count) { return count != spec.group_size; });
  if (spec.has_group_index && odd != members.end()) {
    return absl::InvalidArgumentError(
        fmt::format("weight_g_idx: expected {} inputs in each group, received {} in group {}",
                    spec.group_size, *odd, odd - members.begin()));
  }
  return absl::OkStatus();
}

// What the group of the configuration says must be what the tensors show: a zero point or an index
// that is missing would go unnoticed otherwise.
absl::Status CheckScheme(const Context& context, const std::string& prefix, const Scheme* scheme,
                         const WeightSpec& spec, int64_t groups) {
  if (scheme == nullptr || !scheme->has_weights) return absl::OkStatus();
  if (!scheme->type.empty() && scheme->type != "int") {
    return absl::InvalidArgumentError(
        fmt::format("weight_packed: expected type {} as in {}, received integers",
                    Quoted(scheme->type), Quoted(scheme->name)));
  }
  const std::string& strategy = scheme->strategy;
  const bool one = strategy == "channel" || strategy == "tensor";
  if ((one && groups != 1) ||
      (strategy == "group" && scheme->group_size && *scheme->group_size != spec.group_size &&
       *scheme->group_size <= spec.k)) {
    return absl::InvalidArgumentError(
        fmt::format("weight_scale: expected {} as in {}, received groups of {} of {} inputs",
                    one ? "strategy " + strategy : fmt::format("groups of {}", *scheme->group_size),
                    Quoted(scheme->name), spec.group_size, spec.k));
  }
  if (!scheme->symmetric.value_or(true)) {
    NIBBLE_RETURN_IF_ERROR(context.Require(prefix, ".weight_zero_point").status());
  }
  if (!scheme->column_order) {
    NIBBLE_RETURN_IF_ERROR(context.Require(prefix, ".weight_g_idx").status());
  }
  return absl::OkStatus();
}

// Scales [N, G] or [N, 1]; [1] for strategy "tensor", written once for each row.
absl::StatusOr<int64_t> AttachScales(const TensorEntry& scales, LayerPlan* plan) {
  WeightSpec& spec = plan->spec;
  NIBBLE_ASSIGN_OR_RETURN(spec.scale_dtype, FloatDType("weight_scale", scales));
  spec.dtype = spec.scale_dtype;
  int64_t groups = 1;
  if (scales.shape.size() < 2 && scales.elements() == 1) {
    const auto element_bytes = static_cast<int64_t>(DTypeBytes(spec.scale_dtype));
    plan->scales = Written(spec.n * element_bytes, [&scales](std::span<std::byte> out) {
      for (size_t i = 0; i < out.size(); i += scales.data.size()) {
        std::memcpy(out.data() + i, scales.data.data(), scales.data.size());
      }
    });
  } else {
    NIBBLE_RETURN_IF_ERROR(ExpectMatrix("weight_scale", scales));
    groups = scales.shape[1];
    NIBBLE_RETURN_IF_ERROR(ExpectShape("weight_scale", scales, {spec.n, groups}));
    plan->scales = Borrow(scales);
  }
  if (spec.k % groups != 0) {
    return absl::InvalidArgumentError(
        fmt::format("weight_scale: expected a number of groups that divides K {}, received {}",
                    spec.k, groups));
  }
  spec.group_size = spec.k / groups;
  return groups;
}

}  // namespace

absl::StatusOr<LayerPlan> PlanPackQuantized(const Context& context, const std::string& prefix) {
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* words, context.Require(prefix, ".weight_packed"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* scales, context.Require(prefix, ".weight_scale"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* shape, context.Require(prefix, ".weight_shape"));
  const LayerSettings settings = SettingsOf(context.config, prefix);
  if (settings.scheme != nullptr && settings.scheme->bits.value_or(4) != 4) {
    return Refused(fmt::format("pack-quantized with {} bits", *settings.scheme->bits),
                   "pack-quantized with 4 bits is");
  }
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight_packed", *words, {"I32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("weight_packed", *words));

  LayerPlan plan;
  WeightSpec& spec = plan.spec;
  spec.format = Format::kInt4;
  NIBBLE_RETURN_IF_ERROR(ReadShape(*shape, *words, &spec));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t groups, AttachScales(*scales, &plan));
  NIBBLE_RETURN_IF_ERROR(CheckScheme(context, prefix, settings.scheme, spec, groups));
  if (const TensorEntry* index = context.Find(prefix, ".weight_g_idx")) {
    NIBBLE_RETURN_IF_ERROR(ReadGroupIndex(context, prefix, *index, groups, &plan));
  }
  if (const TensorEntry* zeros = context.Find(prefix, ".weight_zero_point")) {
    NIBBLE_ASSIGN_OR_RETURN(const PackedZeros packed, ReadZeros(*zeros, spec.n, groups));
    AttachZeroPoints(packed, &plan);
    if (spec.has_zero_points && settings.scheme != nullptr &&
        settings.scheme->symmetric.value_or(false)) {
      return absl::InvalidArgumentError(
          fmt::format("weight_zero_point: expected none but 0, as {} is symmetric, received others",
                      Quoted(settings.scheme->name)));
    }
  }
  if (spec.k % 8 == 0) {
    plan.codes = Borrow(*words);
  } else {
    plan.codes = Written(spec.n * CeilDiv(spec.k, 2),
                         [words, n = spec.n, k = spec.k](std::span<std::byte> out) {
                           CodesFromRowWords(words->data, n, k, out);
                         });
  }
  NIBBLE_RETURN_IF_ERROR(AttachBias(context, prefix, &plan));
  return FinishPlan(prefix, "compressed-tensors", std::move(plan));
}

}  // namespace nibble::checkpoint
