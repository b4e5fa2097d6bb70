#include "server/checkpoint/quantized.h"

#include <utility>

#include "fmt/format.h"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {
namespace {

absl::Status InLayer(std::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("layer {}: {}", Quoted(name), MessageOf(status)));
}

class QuantizedCheckpoint final : public Checkpoint {
 public:
  QuantizedCheckpoint(std::unique_ptr<Checkpoint> source, QuantizePlan plan)
      : source_(std::move(source)),
        plan_(std::move(plan)),
        layers_(source_->layers()),
        notices_(source_->notices()) {}

  absl::Status Plan() {
    bool any = false;
    for (Layer& layer : layers_) {
      if (!IsQuantized(plan_, layer)) continue;
      any = true;
      absl::StatusOr<WeightSpec> spec = QuantizedSpec(plan_, layer.spec);
      if (!spec.ok()) return InLayer(layer.name, spec.status());
      NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(*spec));
      layer.spec = *spec;
      layer.bytes = geometry.total_bytes;
      layer.host_bytes += geometry.total_bytes;
    }
    if (!any) {
      notices_.push_back(
          fmt::format("no layer was quantized to {}: none is unquantized and selected",
                      ToString(plan_.target)));
    }
    return absl::OkStatus();
  }

  const std::vector<Layer>& layers() const override { return layers_; }
  const std::vector<std::string>& notices() const override { return notices_; }

  absl::StatusOr<CanonicalWeight> Load(size_t index) const override {
    absl::StatusOr<CanonicalWeight> weight = source_->Load(index);
    if (!weight.ok() || layers_[index].spec.format == weight->spec.format) return weight;
    absl::StatusOr<CanonicalWeight> quantized = QuantizeLayer(plan_, *weight);
    if (!quantized.ok()) return InLayer(layers_[index].name, quantized.status());
    return quantized;
  }

  absl::StatusOr<CanonicalWeight> LoadForUpload(size_t index) const override {
    if (index < layers_.size() && IsQuantized(plan_, source_->layers()[index])) return Load(index);
    return source_->LoadForUpload(index);
  }

  void Release(size_t index) const override { source_->Release(index); }
  absl::Status CheckIntact() const override { return source_->CheckIntact(); }

 private:
  const std::unique_ptr<Checkpoint> source_;
  const QuantizePlan plan_;
  std::vector<Layer> layers_;
  std::vector<std::string> notices_;
};

}  // namespace

bool IsQuantized(const QuantizePlan& plan, const Layer& layer) {
  return layer.spec.format == Format::kDense && layer.spec.n > 1 && plan.filter.Selects(layer.name);
}

absl::StatusOr<WeightSpec> QuantizedSpec(const QuantizePlan& plan, const WeightSpec& dense) {
  WeightSpec spec = SpecFor(plan.target, dense.n, dense.k, dense.dtype);
  spec.has_bias = dense.has_bias;
  spec.bias_dtype = dense.bias_dtype;
  NIBBLE_RETURN_IF_ERROR(GeometryOf(spec).status());
  return spec;
}

absl::StatusOr<CanonicalWeight> QuantizeLayer(const QuantizePlan& plan,
                                              const CanonicalWeight& dense) {
  NIBBLE_ASSIGN_OR_RETURN(const WeightSpec spec, QuantizedSpec(plan, dense.spec));
  const auto matrix =
      MakeConstView(dense.codes.data(), dense.spec.dtype, dense.spec.n, dense.spec.k);
  NIBBLE_ASSIGN_OR_RETURN(CanonicalWeight weight, Quantize(matrix, spec, plan.target.options));
  weight.spec = spec;
  weight.bias = dense.bias;
  return weight;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> QuantizeOnLoad(std::unique_ptr<Checkpoint> source,
                                                           const QuantizePlan& plan) {
  auto checkpoint = std::make_unique<QuantizedCheckpoint>(std::move(source), plan);
  NIBBLE_RETURN_IF_ERROR(checkpoint->Plan());
  return checkpoint;
}

}  // namespace nibble::checkpoint
