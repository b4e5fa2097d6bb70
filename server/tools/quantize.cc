#include "server/tools/quantize.h"

#include <exception>
#include <memory>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "nibble/quantize.h"
#include "nibble/status.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/quant_config.h"
#include "server/checkpoint/quantized.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors_writer.h"
#include "server/checkpoint/strict_json.h"
#include "server/tools/dialect_writer.h"
#include "server/tools/output_directory.h"
#include "server/tools/weight_error.h"

namespace nibble::tools {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TensorDeclaration;
using checkpoint::TensorEntry;
using Json = nlohmann::ordered_json;

constexpr std::string_view kConfigName = "config.json";
constexpr size_t kMaxConfigBytes = size_t{16} << 20;
// The output head that shares its weight with the embedding has no tensor, but is a linear layer to
// the libraries that read the result.
constexpr std::string_view kTiedHead = "lm_head";

// What becomes of one tensor of the input, with what it becomes.
struct Unit {
  std::string tensor;                     // of the input
  int64_t layer = -1;                     // index in the checkpoint of a layer to quantize
  WeightSpec spec;                        // of that layer, quantized
  std::vector<TensorDeclaration> output;  // one for a tensor that is copied
  int64_t bytes_before = 0;
  int64_t bytes_after = 0;
};

struct Plan {
  std::vector<Unit> units;  // sorted by tensor
  std::vector<std::string> kept;
  std::vector<std::pair<size_t, size_t>> shards;  // ranges of units
  int64_t bytes_before = 0;
  int64_t bytes_after = 0;
};

absl::Status CheckUnquantized(const checkpoint::QuantConfig& config) {
  if (config.method.empty() && !config.present) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("input: expected an unquantized checkpoint; received one with a "
                  "quantization_config{}",
                  config.method.empty() ? "" : fmt::format(" of {}", config.method)));
}

absl::StatusOr<int64_t> BytesOf(const std::vector<TensorDeclaration>& tensors) {
  int64_t bytes = 0;
  for (const TensorDeclaration& tensor : tensors) {
    int64_t elements = checkpoint::DTypeBits(tensor.dtype);
    for (int64_t dim : tensor.shape) {
      const std::optional<int64_t> product = CheckedMul(elements, dim);
      if (!product) return absl::InvalidArgumentError("a tensor is larger than 2^63 bits");
      elements = *product;
    }
    bytes += elements / 8;
  }
  return bytes;
}

class Quantizer {
 public:
  Quantizer(const QuantizeRequest& request, QuantizeTarget target, const QuantizeProgress& progress)
      : request_(request),
        progress_(progress),
        dialect_(DialectOf(target.spec.format)),
        quantize_{std::move(target), {request.include, request.exclude}} {
    quantize_.target.options.threads = request.threads;
  }

  absl::StatusOr<QuantizeReport> Run() {
    NIBBLE_RETURN_IF_ERROR(OpenInput());
    NIBBLE_RETURN_IF_ERROR(PlanUnits());
    if (quantized_ == 0) {
      return absl::InvalidArgumentError(
          "input: expected a linear layer that is selected and can be quantized; found none");
    }
    PlanShards();
    NIBBLE_ASSIGN_OR_RETURN(
        OutputDirectory output,
        OutputDirectory::Create(request_.output, request_.input, request_.force));
    NIBBLE_RETURN_IF_ERROR(WriteShards(output));
    // A file that was cut short while it was read has given zeros.
    NIBBLE_RETURN_IF_ERROR(input_->CheckIntact());
    NIBBLE_RETURN_IF_ERROR(WriteConfig(output));
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> left_out,
                            output.CopyOthers(request_.input, kConfigName));
    for (const std::string& name : left_out) {
      report_.notices.push_back(fmt::format("not copied: {}", name));
    }
    NIBBLE_RETURN_IF_ERROR(CheckCancelled());
    NIBBLE_RETURN_IF_ERROR(output.Publish());
    report_.kept = plan_.kept;
    report_.bytes_before = plan_.bytes_before;
    report_.bytes_after = plan_.bytes_after;
    return std::move(report_);
  }

 private:
  absl::Status OpenInput() {
    NIBBLE_ASSIGN_OR_RETURN(const checkpoint::ConfigTexts texts,
                            checkpoint::ReadConfigTexts(request_.input));
    config_text_ = texts.config;
    NIBBLE_ASSIGN_OR_RETURN(const checkpoint::QuantConfig config,
                            checkpoint::ParseQuantConfig(texts));
    NIBBLE_RETURN_IF_ERROR(CheckUnquantized(config));
    model_dtype_ = config.model_dtype;
    NIBBLE_ASSIGN_OR_RETURN(input_, Checkpoint::Open(request_.input));
    checkpoint::Notices notices;
    NIBBLE_ASSIGN_OR_RETURN(tensors_, checkpoint::ReadDirectory(request_.input, config, &notices));
    return absl::OkStatus();
  }

  // The layer's quantized spec, or nothing where it is kept.
  absl::StatusOr<std::optional<WeightSpec>> SpecOf(const checkpoint::Layer& layer) {
    if (!checkpoint::IsQuantized(quantize_, layer)) return std::optional<WeightSpec>();
    checkpoint::QuantizePlan plan = quantize_;
    // The dialects compute in the scale's type: with the weight's own, nothing is rounded twice.
    plan.target.spec.scale_dtype = layer.spec.dtype;
    NIBBLE_ASSIGN_OR_RETURN(const WeightSpec spec, checkpoint::QuantizedSpec(plan, layer.spec));
    const std::string refusal = dialect_.Refusal(spec);
    if (refusal.empty()) return std::optional(spec);
    report_.notices.push_back(fmt::format("{} is not quantized: {}", layer.name, refusal));
    return std::optional<WeightSpec>();
  }

  absl::Status PlanUnits() {
    std::map<std::string, std::pair<int64_t, WeightSpec>> chosen;  // by tensor
    const std::vector<checkpoint::Layer>& layers = input_->layers();
    for (size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].spec.format != Format::kDense) {
        return absl::InvalidArgumentError(
            fmt::format("input: expected an unquantized checkpoint; layer {} is {}",
                        checkpoint::Quoted(layers[i].name), ToString(layers[i].spec)));
      }
      NIBBLE_ASSIGN_OR_RETURN(const std::optional<WeightSpec> spec, SpecOf(layers[i]));
      if (spec) {
        chosen[layers[i].name + ".weight"] = {static_cast<int64_t>(i), *spec};
      } else if (layers[i].spec.n > 1) {
        plan_.kept.push_back(layers[i].name);
      }
    }
    quantized_ = chosen.size();
    for (const auto& [name, entry] : tensors_) {
      Unit unit;
      unit.tensor = name;
      unit.bytes_before = static_cast<int64_t>(entry.data.size());
      if (const auto found = chosen.find(name); found != chosen.end()) {
        unit.layer = found->second.first;
        unit.spec = found->second.second;
        unit.output = dialect_.Declare(layers[static_cast<size_t>(unit.layer)].name, unit.spec);
      } else {
        unit.output = {{name, entry.dtype, entry.shape}};
        ++report_.copied_tensors;
      }
      NIBBLE_ASSIGN_OR_RETURN(unit.bytes_after, BytesOf(unit.output));
      plan_.bytes_before += unit.bytes_before;
      plan_.bytes_after += unit.bytes_after;
      plan_.units.push_back(std::move(unit));
    }
    const std::string head(kTiedHead);
    if (!tensors_.contains(head + ".weight")) plan_.kept.push_back(head);
    return absl::OkStatus();
  }

  void PlanShards() {
    int64_t bytes = 0;
    for (size_t i = 0; i < plan_.units.size(); ++i) {
      const int64_t unit_bytes = plan_.units[i].bytes_after;
      if (plan_.shards.empty() || bytes + unit_bytes > request_.max_shard_bytes) {
        plan_.shards.emplace_back(i, i);
        bytes = 0;
      }
      plan_.shards.back().second = i + 1;
      bytes += unit_bytes;
    }
  }

  std::string ShardName(size_t shard) const {
    if (plan_.shards.size() == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, plan_.shards.size());
  }

  absl::Status WriteShards(const OutputDirectory& output) {
    Json weight_map = Json::object();
    for (size_t shard = 0; shard < plan_.shards.size(); ++shard) {
      const auto [begin, end] = plan_.shards[shard];
      const std::string name = ShardName(shard);
      std::vector<TensorDeclaration> declared;
      for (size_t i = begin; i < end; ++i) {
        for (const TensorDeclaration& tensor : plan_.units[i].output) {
          declared.push_back(tensor);
          weight_map[tensor.name] = name;
        }
      }
      NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::SafetensorsWriter> writer,
                              checkpoint::SafetensorsWriter::Create(output.FileName(name), declared,
                                                                    {{"format", "pt"}}));
      for (size_t i = begin; i < end; ++i) {
        NIBBLE_RETURN_IF_ERROR(WriteUnit(plan_.units[i], *writer));
      }
      NIBBLE_RETURN_IF_ERROR(writer->Finish());
      report_.files.push_back(name);
    }
    if (plan_.shards.size() == 1) return absl::OkStatus();
    const Json index = {{"metadata", {{"total_size", plan_.bytes_after}}},
                        {"weight_map", std::move(weight_map)}};
    return output.WriteText("model.safetensors.index.json", index.dump(2) + "\n");
  }

  absl::Status CheckCancelled() const {
    if (request_.cancelled == nullptr || !request_.cancelled->load()) return absl::OkStatus();
    return absl::CancelledError("interrupted; nothing of the output is left");
  }

  absl::Status WriteUnit(const Unit& unit, checkpoint::SafetensorsWriter& writer) {
    progress_(bytes_done_, plan_.bytes_before, unit.layer < 0 ? "" : unit.tensor);
    NIBBLE_RETURN_IF_ERROR(CheckCancelled());
    bytes_done_ += unit.bytes_before;
    if (unit.layer < 0) return writer.Write(unit.tensor, tensors_.find(unit.tensor)->second.data);
    const auto index = static_cast<size_t>(unit.layer);
    const std::string& name = input_->layers()[index].name;
    NIBBLE_ASSIGN_OR_RETURN(const CanonicalWeight dense, input_->Load(index));
    checkpoint::QuantizePlan plan = quantize_;
    plan.target.spec.scale_dtype = unit.spec.scale_dtype;
    const absl::StatusOr<CanonicalWeight> weight = checkpoint::QuantizeLayer(plan, dense);
    if (!weight.ok()) {
      return absl::Status(
          weight.status().code(),
          fmt::format("layer {}: {}", checkpoint::Quoted(name), MessageOf(weight.status())));
    }
    for (const OutputTensor& tensor : dialect_.Write(name, *weight)) {
      NIBBLE_RETURN_IF_ERROR(writer.Write(tensor.declaration.name, tensor.data.span()));
    }
    NIBBLE_ASSIGN_OR_RETURN(const WeightError error,
                            MeasureError(dense, *weight, request_.threads));
    report_.layers.push_back({name, ToString(unit.spec), unit.spec.n, unit.spec.k,
                              unit.bytes_before, unit.bytes_after, error.relative, error.largest});
    return absl::OkStatus();
  }

  absl::Status WriteConfig(const OutputDirectory& output) {
    Json config = Json::object();
    if (!config_text_.empty()) {
      // Checked for what would be read in two ways, then parsed in the order of its keys.
      NIBBLE_RETURN_IF_ERROR(checkpoint::ParseJsonObject(config_text_, kMaxConfigBytes).status());
      config = Json::parse(config_text_);
    }
    config["quantization_config"] =
        dialect_.Config({quantize_.target, model_dtype_.value_or(DType::kBF16), plan_.kept});
    return output.WriteText(kConfigName, config.dump(2) + "\n");
  }

  const QuantizeRequest& request_;
  const QuantizeProgress& progress_;
  const DialectWriter& dialect_;
  checkpoint::QuantizePlan quantize_;
  std::string config_text_;
  std::optional<DType> model_dtype_;
  std::unique_ptr<Checkpoint> input_;
  checkpoint::TensorMap tensors_;
  Plan plan_;
  size_t quantized_ = 0;
  int64_t bytes_done_ = 0;
  QuantizeReport report_;
};

}  // namespace

absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const QuantizeRequest& request,
                                                  const QuantizeProgress& progress) try {
  NIBBLE_ASSIGN_OR_RETURN(QuantizeTarget target, ParseQuantizeTarget(request.format));
  if (request.max_shard_bytes < 1) {
    return absl::InvalidArgumentError(
        fmt::format("max_shard_bytes: expected at least 1; received {}", request.max_shard_bytes));
  }
  return Quantizer(request, std::move(target), progress).Run();
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError(
      fmt::format("{}: no host memory to quantize it", request.input));
} catch (const std::exception& e) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", request.input, e.what()));
}

}  // namespace nibble::tools
