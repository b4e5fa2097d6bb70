#include "server/checkpoint/detect.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "fmt/format.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/tied_head.h"

namespace nibble::checkpoint {
namespace {

// The tensors that make a layer, by the end of their names.
constexpr std::array<std::string_view, 3> kLeaders = {".weight", ".qweight", ".weight_packed"};

// Tensors that mean nothing without the leader beside them; the second leader may stand in for the
// first.
struct Companion {
  std::string_view suffix;
  std::string_view leader;
  std::string_view or_leader;
};
constexpr std::array<Companion, 16> kCompanions = {{
    {".weight.quant_state.bitsandbytes__nf4", ".weight", ""},
    {".weight.quant_state.bitsandbytes__fp4", ".weight", ""},
    {".weight.absmax", ".weight", ""},
    {".weight.quant_map", ".weight", ""},
    {".weight.nested_absmax", ".weight", ""},
    {".weight.nested_quant_map", ".weight", ""},
    {".SCB", ".weight", ""},
    {".qzeros", ".qweight", ""},
    {".g_idx", ".qweight", ""},
    {".weight_scale", ".weight", ".weight_packed"},
    {".weight_scale_inv", ".weight", ""},
    {".weight_scale_2", ".weight", ""},
    {".weight_global_scale", ".weight_packed", ".weight"},
    {".weight_zero_point", ".weight_packed", ".weight"},
    {".weight_shape", ".weight_packed", ".weight"},
    {".weight_g_idx", ".weight_packed", ".weight"},
}};

// Tensors that a layer may have, and that are left out where there is no layer.
constexpr std::array<std::string_view, 4> kOptional = {".bias", ".scales", ".input_scale",
                                                       ".weight_format"};

constexpr std::array<std::string_view, 9> kMethods = {
    "bitsandbytes", "gptq",       "awq",      "auto-round", "compressed-tensors",
    "fp8",          "fbgemm_fp8", "modelopt", "mxfp4"};

std::optional<std::string> PrefixBefore(std::string_view name, std::string_view suffix) {
  if (name.size() <= suffix.size() || !name.ends_with(suffix)) return std::nullopt;
  return std::string(name.substr(0, name.size() - suffix.size()));
}

bool IsFloat(std::string_view dtype) { return dtype == "F16" || dtype == "BF16" || dtype == "F32"; }

absl::Status Missing(std::string_view prefix, std::string_view suffixes) {
  return absl::InvalidArgumentError(
      fmt::format("tensor {} is missing", Quoted(fmt::format("{}{}", prefix, suffixes))));
}

absl::StatusOr<PlanFunction> PackedBytes(const Context& context, const std::string& prefix,
                                         const TensorEntry& weight) {
  const TensorEntry* scale = context.Find(prefix, ".weight_scale");
  if (context.Find(prefix, ".weight_scale_2") != nullptr ||
      context.Find(prefix, ".weight_global_scale") != nullptr ||
      (scale != nullptr && scale->dtype == "F8_E4M3")) {
    return Refused("NVFP4", "bitsandbytes NF4, GPTQ, AWQ and FP8 are");
  }
  if (scale != nullptr && (scale->dtype == "U8" || scale->dtype == "F8_E8M0")) {
    return Refused("MXFP4", "bitsandbytes NF4, GPTQ, AWQ and FP8 are");
  }
  if (weight.dtype == "I8") {
    if (scale != nullptr) return Refused("INT8 of compressed-tensors", "FP8 or 4 bits are");
    return Missing(prefix, ".SCB");
  }
  return Missing(prefix, ".weight.quant_state.bitsandbytes__nf4");
}

absl::StatusOr<PlanFunction> FloatWeight(const Context& context, const std::string& prefix,
                                         const TensorEntry& weight) {
  for (std::string_view suffix : {".weight_scale", ".weight_scale_inv", ".weight_scale_2"}) {
    if (context.Find(prefix, suffix) != nullptr) {
      return Refused(fmt::format("a {} weight beside its {}", weight.dtype, suffix.substr(1)),
                     "a checkpoint saved in compressed form is");
    }
  }
  if (std::find(weight.shape.begin(), weight.shape.end(), 0) != weight.shape.end() ||
      weight.shape.empty() || weight.shape.size() > 2) {
    context.notices->Add("weight is neither a matrix nor a vector, left out", prefix);
    return nullptr;
  }
  if (weight.shape.size() == 2 && IsEmbedding(prefix)) {
    context.notices->Add("embedding is no linear layer, left out", prefix);
    return nullptr;
  }
  if (weight.shape.size() == 2 && weight.shape[1] == 1 && context.config.load_in_4bit) {
    return Missing(prefix, ".weight.quant_state.bitsandbytes__nf4");
  }
  return &PlanDense;
}

absl::StatusOr<PlanFunction> ForWeight(const Context& context, const std::string& prefix,
                                       const TensorEntry& weight) {
  for (std::string_view suffix :
       {".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4",
        ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax"}) {
    if (context.Find(prefix, suffix) != nullptr) return &PlanBitsandbytes;
  }
  if (context.Find(prefix, ".weight_quant_state") != nullptr ||
      context.Find(prefix, ".weight_absmax") != nullptr) {
    return Refused("bitsandbytes under underscored names (weight_absmax)",
                   "the dotted names of transformers (weight.absmax) are");
  }
  if (context.Find(prefix, ".SCB") != nullptr || context.Find(prefix, ".weight_scb") != nullptr) {
    return Refused("bitsandbytes int8", "bitsandbytes 4-bit (NF4, FP4) is");
  }
  if (weight.dtype == "F8_E4M3") {
    if (weight.shape.size() == 2) return &PlanFp8;
    return Refused(fmt::format("FP8 weight {}", Describe(weight)), "an FP8 matrix [N, K] is");
  }
  if (weight.dtype.starts_with("F8_")) {
    return Refused(fmt::format("FP8 of dtype {}", weight.dtype), "F8_E4M3 is");
  }
  if (weight.dtype == "U8" || weight.dtype == "I8" || weight.dtype == "F4") {
    return PackedBytes(context, prefix, weight);
  }
  if (IsFloat(weight.dtype)) return FloatWeight(context, prefix, weight);
  context.notices->Add("weight is of a type that is not served, left out",
                       fmt::format("{} {}", prefix, Describe(weight)));
  return nullptr;
}

// GPTQ and AWQ share names; the shapes tell them apart, and the configuration has to agree.
absl::StatusOr<PlanFunction> ForQweight(const Context& context, const std::string& prefix,
                                        const TensorEntry& words) {
  const bool awq = context.config.method == "awq" ||
                   context.config.packing_format.find("awq") != std::string::npos;
  const bool gptq = context.config.method == "gptq";
  const auto gemv = [] { return Refused("AWQ in a gemv layout", "AWQ version \"gemm\" is"); };
  if (words.dtype == "I16" || (awq && context.config.version.starts_with("gemv"))) return gemv();
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* scales, context.Require(prefix, ".scales"));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("qweight", words));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("scales", *scales));
  const bool column_words = words.shape[1] == scales->shape[1];
  if (column_words && !awq) return &PlanGptq;
  if (scales->shape[1] / 8 == words.shape[1] && scales->shape[1] % 8 == 0 && !gptq) {
    return &PlanAwq;
  }
  if (words.shape[0] == scales->shape[0] && !gptq) return gemv();
  return absl::InvalidArgumentError(fmt::format("qweight {} and scales {} do not fit {}",
                                                Describe(words), Describe(*scales),
                                                awq    ? "AWQ: qweight [K, N/8], scales [G, N]"
                                                : gptq ? "GPTQ: qweight [K/8, N], scales [G, N]"
                                                       : "GPTQ or AWQ"));
}

absl::StatusOr<PlanFunction> ForPacked(const Context& context, const std::string& prefix,
                                       const TensorEntry& words) {
  const std::string& format = context.config.format;
  if (format.starts_with("marlin") || context.Find(prefix, ".scale_packed") != nullptr) {
    return Refused("the marlin layout", "pack-quantized as compressed, not repacked, is");
  }
  if (words.dtype != "U8" && words.dtype != "F4") return &PlanPackQuantized;
  return PackedBytes(context, prefix, words);
}

absl::StatusOr<PlanFunction> ForLeader(const Context& context, std::string_view leader,
                                       const std::string& prefix, const TensorEntry& entry) {
  if (leader == ".weight") return ForWeight(context, prefix, entry);
  if (leader == ".qweight") return ForQweight(context, prefix, entry);
  return ForPacked(context, prefix, entry);
}

struct Refusal {
  std::string layer;
  absl::Status reason;
};

// Layouts whose tensors have names of their own.
std::optional<Refusal> RefuseByName(const Context& context, std::string_view name) {
  for (const auto& [blocks, scales] :
       {std::pair{"_blocks", "_scales"}, std::pair{".blocks", ".scales"}}) {
    const auto prefix = PrefixBefore(name, blocks);
    if (prefix && context.Find(*prefix, scales) != nullptr) {
      return Refusal{*prefix, Refused("MXFP4", "bitsandbytes NF4, GPTQ, AWQ and FP8 are")};
    }
  }
  const auto marlin = PrefixBefore(name, ".B");
  if (marlin && context.Find(*marlin, ".s") != nullptr) {
    return Refusal{*marlin, Refused("the marlin layout", "GPTQ as quantized, not repacked, is")};
  }
  const auto sparse = PrefixBefore(name, ".bitmask");
  if (sparse && context.Find(*sparse, ".compressed") != nullptr) {
    return Refusal{*sparse, Refused("the sparse-bitmask layout", "a dense checkpoint is")};
  }
  return std::nullopt;
}

std::optional<Refusal> CheckCompanion(const Context& context, std::string_view name) {
  for (const Companion& companion : kCompanions) {
    const auto prefix = PrefixBefore(name, companion.suffix);
    if (!prefix || context.Find(*prefix, companion.leader) != nullptr) continue;
    if (!companion.or_leader.empty() && context.Find(*prefix, companion.or_leader) != nullptr) {
      continue;
    }
    std::string wanted = Quoted(fmt::format("{}{}", *prefix, companion.leader));
    if (!companion.or_leader.empty()) {
      wanted += fmt::format(" or {}", Quoted(fmt::format("{}{}", *prefix, companion.or_leader)));
    }
    return Refusal{*prefix,
                   absl::InvalidArgumentError(fmt::format(
                       "tensor {} is missing, its companion {} is present", wanted, Quoted(name)))};
  }
  return std::nullopt;
}

bool HasLeader(const Context& context, std::string_view prefix) {
  return std::any_of(kLeaders.begin(), kLeaders.end(), [&](std::string_view leader) {
    return context.Find(prefix, leader) != nullptr;
  });
}

// True for a tensor that some layer's leader accounts for.
bool Accounted(const Context& context, std::string_view name) {
  const auto belongs = [&](std::string_view suffix) {
    const auto prefix = PrefixBefore(name, suffix);
    return prefix && HasLeader(context, *prefix);
  };
  return std::any_of(kLeaders.begin(), kLeaders.end(), belongs) ||
         std::any_of(kOptional.begin(), kOptional.end(), belongs) ||
         std::any_of(kCompanions.begin(), kCompanions.end(),
                     [&](const Companion& c) { return belongs(c.suffix); });
}

}  // namespace

absl::Status CheckMethod(const QuantConfig& config) {
  const std::string& method = config.method;
  if (method.empty() || std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end()) {
    return absl::OkStatus();
  }
  return Refused(fmt::format("quant_method {}", Quoted(method)),
                 "bitsandbytes, gptq, awq, compressed-tensors and fp8 are");
}

DetectedLayers DetectLayers(const Context& context) {
  DetectedLayers layers;
  const auto add = [&](const std::string& layer, absl::StatusOr<PlanFunction> plan) {
    const auto [it, added] = layers.emplace(layer, DetectedLayer{plan, layer});
    if (added || !it->second.plan.ok()) return;
    it->second.plan =
        plan.ok()
            ? absl::InvalidArgumentError("expected one weight, received two in different forms")
            : std::move(plan);
  };
  for (const auto& [name, entry] : context.tensors) {
    if (const auto refusal = RefuseByName(context, name)) add(refusal->layer, refusal->reason);
    if (const auto refusal = CheckCompanion(context, name)) add(refusal->layer, refusal->reason);
    for (std::string_view leader : kLeaders) {
      const auto prefix = PrefixBefore(name, leader);
      if (!prefix) continue;
      const absl::StatusOr<PlanFunction> plan = ForLeader(context, leader, *prefix, entry);
      if (!plan.ok() || *plan != nullptr) add(*prefix, plan);
    }
    if (!Accounted(context, name)) {
      context.notices->Add("tensor is no part of a linear layer, left out", name);
    }
  }
  TieHead(context, &layers);
  return layers;
}

}  // namespace nibble::checkpoint
