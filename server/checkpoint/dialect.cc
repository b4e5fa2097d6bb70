#include "server/checkpoint/dialect.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {

void Notices::Add(std::string what, std::string where) {
  Places& places = places_[std::move(what)];
  if (places.count++ == 0) places.first = std::move(where);
}

std::vector<std::string> Notices::Sentences() const {
  std::vector<std::string> sentences;
  for (const auto& [what, places] : places_) {
    sentences.push_back(places.count == 1 ? fmt::format("{}: {}", what, places.first)
                                          : fmt::format("{}: {} and {} more", what, places.first,
                                                        places.count - 1));
  }
  return sentences;
}

const TensorEntry* Context::Find(std::string_view prefix, std::string_view suffix) const {
  const auto it = tensors.find(fmt::format("{}{}", prefix, suffix));
  return it == tensors.end() ? nullptr : &it->second;
}

absl::StatusOr<const TensorEntry*> Context::Require(std::string_view prefix,
                                                    std::string_view suffix) const {
  const TensorEntry* entry = Find(prefix, suffix);
  if (entry == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("tensor {} is missing", Quoted(fmt::format("{}{}", prefix, suffix))));
  }
  return entry;
}

absl::Status Refused(std::string_view kind, std::string_view instead) {
  return absl::UnimplementedError(fmt::format("{} is not served; {}", kind, instead));
}

std::string Describe(const TensorEntry& entry) {
  return fmt::format("{} [{}]", entry.dtype, fmt::join(entry.shape, ", "));
}

absl::Status ExpectDType(std::string_view tensor, const TensorEntry& entry,
                         std::initializer_list<std::string_view> dtypes) {
  if (std::find(dtypes.begin(), dtypes.end(), entry.dtype) != dtypes.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("{}: expected dtype {}, received {}", tensor,
                                                fmt::join(dtypes, " or "), Describe(entry)));
}

absl::Status ExpectShape(std::string_view tensor, const TensorEntry& entry,
                         const std::vector<int64_t>& shape) {
  if (entry.shape == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{}: expected shape [{}], received {}", tensor,
                                                fmt::join(shape, ", "), Describe(entry)));
}

absl::Status ExpectMatrix(std::string_view tensor, const TensorEntry& entry) {
  if (entry.shape.size() == 2 && entry.shape[0] > 0 && entry.shape[1] > 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: expected two positive dimensions, received {}", tensor, Describe(entry)));
}

absl::StatusOr<DType> FloatDType(std::string_view tensor, const TensorEntry& entry) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (entry.dtype == DTypeName(dtype)) return dtype;
  }
  return ExpectDType(tensor, entry, {"F32", "F16", "BF16"});
}

PartPlan Borrow(const TensorEntry& entry, int64_t bytes) {
  return {bytes, HostBytes(entry.data.first(static_cast<size_t>(bytes)), entry.keep_alive),
          nullptr};
}

PartPlan Borrow(const TensorEntry& entry) {
  return Borrow(entry, static_cast<int64_t>(entry.data.size()));
}

PartPlan Written(int64_t bytes, std::function<void(std::span<std::byte> out)> write) {
  return {bytes, HostBytes(), std::move(write)};
}

absl::Status AttachBias(const Context& context, std::string_view prefix, LayerPlan* plan) {
  const TensorEntry* bias = context.Find(prefix, ".bias");
  if (bias == nullptr) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(ExpectShape("bias", *bias, {plan->spec.n}));
  NIBBLE_ASSIGN_OR_RETURN(plan->spec.bias_dtype, FloatDType("bias", *bias));
  plan->spec.has_bias = true;
  plan->bias = Borrow(*bias);
  return absl::OkStatus();
}

absl::StatusOr<LayerPlan> FinishPlan(std::string_view prefix, std::string_view dialect,
                                     LayerPlan plan) {
  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(plan.spec));
  plan.prefixes = {std::string(prefix)};
  plan.layer = {std::string(prefix), std::string(dialect), plan.spec, geometry.total_bytes};
  return plan;
}

}  // namespace nibble::checkpoint
