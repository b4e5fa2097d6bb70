// Weights that are not quantized: linear layers [N, K], and vectors such as a norm's gamma.
#include "server/checkpoint/dialect.h"

namespace nibble::checkpoint {

absl::StatusOr<LayerPlan> PlanDense(const Context& context, const std::string& prefix) {
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* weight, context.Require(prefix, ".weight"));
  LayerPlan plan;
  WeightSpec& spec = plan.weight.spec;
  spec.format = Format::kDense;
  NIBBLE_ASSIGN_OR_RETURN(spec.dtype, FloatDType("weight", *weight));
  if (weight->shape.size() == 1) {
    spec.n = 1;
    spec.k = weight->shape[0];
    if (context.Find(prefix, ".bias") != nullptr) {
      context.notices->Add("the bias of a norm is left out", prefix);
    }
  } else {
    NIBBLE_RETURN_IF_ERROR(ExpectMatrix("weight", *weight));
    spec.n = weight->shape[0];
    spec.k = weight->shape[1];
    NIBBLE_RETURN_IF_ERROR(AttachBias(context, prefix, &plan.weight));
  }
  plan.weight.codes = Borrow(*weight);
  return FinishPlan(prefix, "dense", std::move(plan));
}

}  // namespace nibble::checkpoint
