// AWQ with 4 bits in the GEMM layout.
// Layout: AutoAWQ awq/modules/linear/gemm.py and awq/utils/packing_utils.py.
#include "fmt/format.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/int4.h"
#include "server/checkpoint/repack.h"

namespace nibble::checkpoint {

absl::StatusOr<LayerPlan> PlanAwq(const Context& context, const std::string& prefix) {
  const LayerSettings settings = SettingsOf(context.config, prefix);
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* words, context.Require(prefix, ".qweight"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* zeros, context.Require(prefix, ".qzeros"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* scales, context.Require(prefix, ".scales"));
  if (context.Find(prefix, ".g_idx") != nullptr) {
    return absl::InvalidArgumentError("g_idx: expected none beside AWQ's qweight");
  }
  if (settings.bits && *settings.bits != 4) {
    return Refused(fmt::format("AWQ with {} bits", *settings.bits), "AWQ with 4 bits is");
  }
  NIBBLE_RETURN_IF_ERROR(ExpectDType("qweight", *words, {"I32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("qweight", *words));
  NIBBLE_RETURN_IF_ERROR(ExpectDType("qzeros", *zeros, {"I32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("scales", *scales));

  LayerPlan plan;
  WeightSpec& spec = plan.spec;
  spec.format = Format::kInt4;
  NIBBLE_ASSIGN_OR_RETURN(spec.scale_dtype, FloatDType("scales", *scales));
  spec.dtype = context.config.model_dtype.value_or(spec.scale_dtype);
  spec.k = words->shape[0];
  spec.n = scales->shape[1];
  const int64_t groups = scales->shape[0];
  NIBBLE_RETURN_IF_ERROR(ExpectShape("qweight", *words, {spec.k, spec.n / 8}));
  NIBBLE_RETURN_IF_ERROR(ExpectShape("qzeros", *zeros, {groups, spec.n / 8}));
  NIBBLE_ASSIGN_OR_RETURN(spec.group_size, GroupSize(settings.group_size, spec.k, groups));

  AttachFromTranspose(CodesFromInterleavedWords, kInterleavedWordsTile, *words, *scales, &plan);
  AttachZeroPoints({PackedZeros::Layout::kInterleaved, zeros->data, spec.n, groups, 0}, &plan);
  NIBBLE_RETURN_IF_ERROR(AttachBias(context, prefix, &plan));
  return FinishPlan(prefix, "awq", std::move(plan));
}

}  // namespace nibble::checkpoint
