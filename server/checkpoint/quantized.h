// A checkpoint whose unquantized linear layers are quantized as they are loaded.
#ifndef NIBBLE_SERVER_CHECKPOINT_QUANTIZED_H_
#define NIBBLE_SERVER_CHECKPOINT_QUANTIZED_H_

#include <memory>

#include "absl/status/statusor.h"
#include "nibble/quantize.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/layer_filter.h"

namespace nibble::checkpoint {

struct QuantizePlan {
  QuantizeTarget target;
  LayerFilter filter;
};

// True for a dense matrix that the filter selects. Vectors (n = 1) stay as they are.
bool IsQuantized(const QuantizePlan& plan, const Layer& layer);

// What the plan makes of a dense matrix; its bias stays. kInvalidArgument: the target does not fit.
absl::StatusOr<WeightSpec> QuantizedSpec(const QuantizePlan& plan, const WeightSpec& dense);
absl::StatusOr<CanonicalWeight> QuantizeLayer(const QuantizePlan& plan,
                                              const CanonicalWeight& dense);

// `source` with the layers of the plan quantized in Load, one at a time, by all cores. Layers that
// are quantized already, and those that the filter leaves out, stay as they are; a notice says so
// where there is nothing to quantize.
absl::StatusOr<std::unique_ptr<Checkpoint>> QuantizeOnLoad(std::unique_ptr<Checkpoint> source,
                                                           const QuantizePlan& plan);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_QUANTIZED_H_
