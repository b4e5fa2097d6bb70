// Weights that are not quantized: linear layers [N, K], vectors such as a norm's gamma, and the
// Conv1D of GPT-2, which is a linear layer stored as its transpose [K, N].
#include <algorithm>
#include <array>
#include <string_view>

#include "fmt/format.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/repack.h"

namespace nibble::checkpoint {
namespace {

// Models whose layers of these names are Conv1D (huggingface/transformers, pytorch_utils.py).
// Others give the same names to ordinary linear layers.
constexpr std::array<std::string_view, 5> kConv1dModels = {"gpt2", "openai-gpt", "imagegpt",
                                                           "decision_transformer", "clvp"};
constexpr std::array<std::string_view, 4> kConv1dLayers = {"c_attn", "c_proj", "c_fc", "q_attn"};

template <size_t kCount>
bool Holds(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether `weight` is stored as [K, N].
absl::StatusOr<bool> IsTransposed(const Context& context, const std::string& prefix,
                                  const TensorEntry& weight) {
  const size_t dot = prefix.rfind('.');
  const std::string_view last = std::string_view(prefix).substr(dot == prefix.npos ? 0 : dot + 1);
  if (!Holds(kConv1dLayers, last)) return false;
  const std::string& model = context.config.model_type;
  if (!model.empty()) return Holds(kConv1dModels, model);
  // Of an unknown model the bias may tell, which has N elements.
  const TensorEntry* bias = context.Find(prefix, ".bias");
  if (bias != nullptr && bias->shape.size() == 1 && weight.shape[0] != weight.shape[1]) {
    return bias->shape[0] == weight.shape[1];
  }
  return Refused(fmt::format("a layer {} of an unknown model, which may be stored as its transpose",
                             Quoted(last)),
                 "the same with a config.json that names the model_type is");
}

}  // namespace

absl::StatusOr<LayerPlan> PlanDense(const Context& context, const std::string& prefix) {
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* weight, context.Require(prefix, ".weight"));
  LayerPlan plan;
  WeightSpec& spec = plan.spec;
  spec.format = Format::kDense;
  NIBBLE_ASSIGN_OR_RETURN(spec.dtype, FloatDType("weight", *weight));
  plan.codes = Borrow(*weight);
  if (weight->shape.size() == 1) {
    spec.n = 1;
    spec.k = weight->shape[0];
    if (context.Find(prefix, ".bias") != nullptr) {
      context.notices->Add("the bias of a norm is left out", prefix);
    }
    return FinishPlan(prefix, "dense", std::move(plan));
  }
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("weight", *weight));
  NIBBLE_ASSIGN_OR_RETURN(const bool transposed, IsTransposed(context, prefix, *weight));
  spec.n = weight->shape[transposed ? 1 : 0];
  spec.k = weight->shape[transposed ? 0 : 1];
  if (transposed) {
    plan.codes =
        Written(plan.codes.bytes, [weight, k = spec.k, n = spec.n, size = DTypeBytes(spec.dtype)](
                                      auto out) { Transpose(weight->data, k, n, size, out); });
  }
  NIBBLE_RETURN_IF_ERROR(AttachBias(context, prefix, &plan));
  return FinishPlan(prefix, "dense", std::move(plan));
}

}  // namespace nibble::checkpoint
