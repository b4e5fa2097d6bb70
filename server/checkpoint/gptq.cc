// GPTQ with 4 bits: v1 and v2 zero points, act-order, group and column scales.
// Layout: AutoGPTQ auto_gptq/nn_modules/qlinear/qlinear_cuda.py; GPTQModel
// gptqmodel/utils/model.py (v1 and v2).
#include <optional>

#include "fmt/format.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/int4.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/repack.h"

namespace nibble::checkpoint {
namespace {

// Bits of the layer, by the width of its packed zero points; the configured width wins where it
// fits.
absl::StatusOr<int64_t> LayerBits(std::optional<int64_t> said, int64_t n,
                                  const TensorEntry& zeros) {
  const auto fits = [&](int64_t bits) { return zeros.shape[1] == CeilDiv(n * bits, 32); };
  const int64_t configured = said.value_or(4);
  for (int64_t bits : {configured, int64_t{4}, int64_t{8}, int64_t{2}, int64_t{3}}) {
    if (bits > 0 && bits <= 32 && fits(bits)) return bits;
  }
  return absl::InvalidArgumentError(
      fmt::format("qzeros: expected {} columns of 4-bit fields for {} outputs, received {}",
                  CeilDiv(n, 8), n, Describe(zeros)));
}

// True where zero points are stored as they are, false where they are stored minus one.
absl::StatusOr<bool> StoresPlainZeros(const QuantConfig& config) {
  const std::string& format = config.checkpoint_format;
  if (format.empty() || format == "gptq") return false;
  if (format == "gptq_v2") return true;
  return Refused(fmt::format("GPTQ in the {} layout", Quoted(format)),
                 "checkpoint_format \"gptq\" or \"gptq_v2\" is");
}

// A symmetric layer has one zero point, 8. All fields off by one mean that the label of the
// checkpoint names the wrong version, which would shift every weight by one step.
absl::Status CheckLabel(const LayerSettings& settings, bool plain, const PackedZeros& zeros) {
  if (!settings.sym.value_or(true)) return absl::OkStatus();
  const int suspect = plain ? 7 : 8;
  if (zeros.Count(suspect) != zeros.n * zeros.groups) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "qzeros: every field is {} in a symmetric checkpoint labelled {}, so the label is likely "
      "wrong; set checkpoint_format to \"{}\", or sym to false if the zero point really is {}",
      suspect, plain ? "gptq_v2" : "gptq (v1)", plain ? "gptq" : "gptq_v2", plain ? 7 : 9));
}

}  // namespace

absl::StatusOr<LayerPlan> PlanGptq(const Context& context, const std::string& prefix) {
  const QuantConfig& config = context.config;
  const LayerSettings settings = SettingsOf(config, prefix);
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* words, context.Require(prefix, ".qweight"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* zeros, context.Require(prefix, ".qzeros"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* scales, context.Require(prefix, ".scales"));
  const TensorEntry* index = context.Find(prefix, ".g_idx");
  NIBBLE_ASSIGN_OR_RETURN(const bool plain_zeros, StoresPlainZeros(config));
  if (!config.pack_dtype.empty() && config.pack_dtype != "int32") {
    return Refused(fmt::format("GPTQ packed into {} words", Quoted(config.pack_dtype)),
                   "pack_dtype \"int32\" is");
  }
  NIBBLE_RETURN_IF_ERROR(ExpectDType("qweight", *words, {"I32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("qweight", *words));
  NIBBLE_RETURN_IF_ERROR(ExpectDType("qzeros", *zeros, {"I32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("qzeros", *zeros));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("scales", *scales));

  LayerPlan plan;
  WeightSpec& spec = plan.spec;
  spec.format = Format::kInt4;
  NIBBLE_ASSIGN_OR_RETURN(spec.scale_dtype, FloatDType("scales", *scales));
  spec.dtype = config.model_dtype.value_or(spec.scale_dtype);
  spec.n = words->shape[1];
  const int64_t groups = scales->shape[0];
  NIBBLE_RETURN_IF_ERROR(ExpectShape("scales", *scales, {groups, spec.n}));

  NIBBLE_ASSIGN_OR_RETURN(const int64_t bits, LayerBits(settings.bits, spec.n, *zeros));
  if (bits != 4) {
    return Refused(fmt::format("GPTQ with {} bits", bits), "GPTQ with 4 bits is");
  }
  NIBBLE_RETURN_IF_ERROR(ExpectShape("qzeros", *zeros, {groups, CeilDiv(spec.n, 8)}));
  // Without activation order the groups follow the inputs; with it nothing else tells them.
  if (index == nullptr && config.desc_act.value_or(false) && groups > 1) {
    NIBBLE_RETURN_IF_ERROR(context.Require(prefix, ".g_idx").status());
  }
  if (index != nullptr) {
    NIBBLE_RETURN_IF_ERROR(ExpectDType("g_idx", *index, {"I32"}));
    if (index->shape.size() != 1 || CeilDiv(index->shape[0], 8) != words->shape[0]) {
      return absl::InvalidArgumentError(
          fmt::format("g_idx: expected one entry for each of the inputs packed in qweight {}, "
                      "received {}",
                      Describe(*words), Describe(*index)));
    }
  }
  spec.k = index != nullptr ? index->shape[0] : 8 * words->shape[0];
  NIBBLE_ASSIGN_OR_RETURN(spec.group_size, GroupSize(settings.group_size, spec.k, groups));
  if (index != nullptr) {
    NIBBLE_RETURN_IF_ERROR(AttachGroupIndex("g_idx", *index, groups, &plan));
  }

  AttachFromTranspose(CodesFromColumnWords, kColumnWordsTile, *words, *scales, &plan);
  const PackedZeros packed = {PackedZeros::Layout::kAlongColumns, zeros->data, spec.n, groups,
                              plain_zeros ? 0 : 1};
  AttachZeroPoints(packed, &plan);
  if (spec.has_zero_points) {
    NIBBLE_RETURN_IF_ERROR(CheckLabel(settings, plain_zeros, packed));
    if (const int64_t wrapped = plain_zeros ? 0 : packed.Count(15); wrapped > 0) {
      context.notices->Add(
          "zero points stored as 15 in the v1 form are read as 0; other readers take some for 16",
          fmt::format("{}.qzeros ({} of {})", prefix, wrapped, spec.n * groups));
    }
  }
  NIBBLE_RETURN_IF_ERROR(AttachBias(context, prefix, &plan));
  return FinishPlan(prefix, "gptq", std::move(plan));
}

}  // namespace nibble::checkpoint
