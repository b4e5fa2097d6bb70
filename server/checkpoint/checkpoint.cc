#include "server/checkpoint/checkpoint.h"

#include <exception>
#include <new>
#include <utility>

#include "fmt/format.h"
#include "server/checkpoint/detect.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/quant_config.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors.h"

namespace nibble::checkpoint {
namespace {

class PlannedCheckpoint final : public Checkpoint {
 public:
  // `tensors` are kept, since the plans point into them.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Make(const std::string& label,
                                                          TensorMap tensors,
                                                          const QuantConfig& config,
                                                          Notices* notices) {
    auto checkpoint = std::make_unique<PlannedCheckpoint>();
    checkpoint->label_ = label;
    checkpoint->tensors_ = std::move(tensors);
    const Context context{checkpoint->tensors_, config, notices};
    NIBBLE_ASSIGN_OR_RETURN(const auto detected, DetectLayers(context));
    for (const auto& [prefix, plan] : detected) {
      absl::StatusOr<LayerPlan> planned = plan(context, prefix);
      if (!planned.ok()) {
        return absl::Status(planned.status().code(), fmt::format("layer {}: {}", Quoted(prefix),
                                                                 MessageOf(planned.status())));
      }
      checkpoint->layers_.push_back(planned->layer);
      checkpoint->plans_.push_back(*std::move(planned));
    }
    if (checkpoint->layers_.empty()) {
      return absl::InvalidArgumentError("expected at least one linear layer, received none");
    }
    checkpoint->notices_ = notices->Sentences();
    return checkpoint;
  }

  const std::vector<Layer>& layers() const override { return layers_; }
  const std::vector<std::string>& notices() const override { return notices_; }

  absl::StatusOr<CanonicalWeight> Load(size_t index) const override try {
    if (index >= plans_.size()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: expected a layer below {}, received {}", label_, plans_.size(), index));
    }
    const LayerPlan& plan = plans_[index];
    CanonicalWeight weight = plan.weight;
    if (plan.repack) plan.repack(&weight);
    if (absl::Status status = ValidateWeight(weight); !status.ok()) {
      return absl::Status(status.code(), fmt::format("{}: layer {}: {}", label_,
                                                     Quoted(plan.layer.name), MessageOf(status)));
    }
    return weight;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(fmt::format("{}: no host memory for layer {}, {} bytes",
                                                    label_, Quoted(layers_[index].name),
                                                    layers_[index].bytes));
  }

  absl::Status CheckIntact() const override {
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.file != nullptr) NIBBLE_RETURN_IF_ERROR(tensor.file->CheckIntact());
    }
    return absl::OkStatus();
  }

 private:
  std::string label_;
  TensorMap tensors_;
  std::vector<LayerPlan> plans_;
  std::vector<Layer> layers_;
  std::vector<std::string> notices_;
};

absl::Status Labelled(std::string_view label, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", label, MessageOf(status)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory) try {
  NIBBLE_ASSIGN_OR_RETURN(const ConfigTexts texts, ReadConfigTexts(directory));
  const absl::StatusOr<QuantConfig> config = ParseQuantConfig(texts);
  if (!config.ok()) return Labelled(directory, config.status());
  Notices notices;
  NIBBLE_ASSIGN_OR_RETURN(TensorMap tensors, ReadDirectory(directory, *config, &notices));
  auto made = PlannedCheckpoint::Make(directory, std::move(tensors), *config, &notices);
  if (!made.ok()) return Labelled(directory, made.status());
  return made;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError(fmt::format("{}: no host memory to open it", directory));
} catch (const std::exception& e) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", directory, e.what()));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::FromBytes(
    std::span<const std::byte> bytes, std::shared_ptr<const void> keep_alive,
    std::string_view config_json, std::string_view label) try {
  const std::string_view magic(reinterpret_cast<const char*>(bytes.data()),
                               std::min<size_t>(bytes.size(), 4));
  if (magic == "GGUF") return Labelled(label, Refused("GGUF", "a safetensors checkpoint is"));
  const absl::StatusOr<QuantConfig> config =
      ParseQuantConfig({std::string(config_json), std::string(), std::string()});
  if (!config.ok()) return Labelled(label, config.status());
  NIBBLE_ASSIGN_OR_RETURN(const SafetensorsFile file,
                          SafetensorsFile::Parse(bytes, std::move(keep_alive), label));
  Notices notices;
  auto made = PlannedCheckpoint::Make(std::string(label),
                                      TensorMap(file.tensors().begin(), file.tensors().end()),
                                      *config, &notices);
  if (!made.ok()) return Labelled(label, made.status());
  return made;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError(fmt::format("{}: no host memory to open it", label));
} catch (const std::exception& e) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", label, e.what()));
}

}  // namespace nibble::checkpoint
