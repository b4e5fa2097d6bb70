#include "server/checkpoint/checkpoint.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "fmt/format.h"
#include "server/checkpoint/detect.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/fuse.h"
#include "server/checkpoint/layer_settings.h"
#include "server/checkpoint/module_match.h"
#include "server/checkpoint/quant_config.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/scratch_pool.h"

namespace nibble::checkpoint {
namespace {

absl::Status Labelled(std::string_view label, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", label, MessageOf(status)));
}

absl::Status InLayer(std::string_view layer, const absl::Status& status) {
  return Labelled(fmt::format("layer {}", Quoted(layer)), status);
}

// Calls `visit` with every tensor whose name begins with `prefix` and a dot.
template <typename Visit>
void ForTensorsOf(const TensorMap& tensors, const std::string& prefix, const Visit& visit) {
  const std::string start = prefix + ".";
  for (auto it = tensors.lower_bound(start); it != tensors.end(); ++it) {
    if (!it->first.starts_with(start)) break;
    visit(std::string_view(it->first).substr(start.size()), it->second);
  }
}

using Patterns = std::vector<NamePattern>;

absl::StatusOr<Patterns> CompilePatterns(const std::vector<std::string>& expressions) {
  Patterns patterns;
  for (const std::string& expression : expressions) {
    absl::StatusOr<NamePattern> pattern = NamePattern::Compile(expression);
    if (!pattern.ok()) return Labelled("layers", pattern.status());
    patterns.push_back(*std::move(pattern));
  }
  return patterns;
}

bool IsSelected(const Patterns& patterns, std::string_view layer) {
  return patterns.empty() ||
         std::any_of(patterns.begin(), patterns.end(),
                     [&](const NamePattern& pattern) { return pattern.MatchesAnywhere(layer); });
}

absl::StatusOr<LayerPlan> PlanLayer(const Context& context, const std::string& name,
                                    const DetectedLayer& layer) {
  if (!layer.plan.ok()) return layer.plan.status();
  NIBBLE_ASSIGN_OR_RETURN(LayerPlan plan, (*layer.plan)(context, layer.tensors));
  plan.layer.name = name;
  if (plan.layer.dialect != "dense" && SettingsOf(context.config, name).skipped) {
    context.notices->Add("the configuration lists it as not quantized; its tensors are, and count",
                         name);
  }
  return plan;
}

// A step takes nanoseconds: a hundred thousand layers with long lists of usual patterns stay below,
// and no file keeps a load busy for longer than minutes.
constexpr int64_t kMaxMatchingSteps = int64_t{1} << 33;

absl::Status CheckMatching(const DetectedLayers& layers, const QuantConfig& config,
                           const Patterns& selection) {
  int64_t program = ProgramSize(config);
  for (const NamePattern& pattern : selection) program += pattern.program_size();
  int64_t name_bytes = 0;
  for (const auto& [name, layer] : layers) name_bytes += static_cast<int64_t>(name.size());
  if (program == 0 || name_bytes <= kMaxMatchingSteps / program) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("patterns: expected at most {} steps to match them with the names of {} layers, "
                  "received {} for each of {} bytes",
                  kMaxMatchingSteps, layers.size(), program, name_bytes));
}

void NoteUnusable(const ModuleList& list, std::string_view key, Notices* notices) {
  for (const std::string& entry : list.unusable()) {
    notices->Add(
        fmt::format("a pattern of {} cannot be matched, so that the tensors alone decide", key),
        Quoted(entry));
  }
}

int64_t HostBytesOf(const TensorMap& tensors, const LayerPlan& plan) {
  int64_t bytes = 0;
  for (const std::string& prefix : plan.prefixes) {
    ForTensorsOf(tensors, prefix, [&](std::string_view, const TensorEntry& tensor) {
      if (tensor.file != nullptr) bytes += static_cast<int64_t>(tensor.data.size());
    });
  }
  for (const PartPlan* part : {&plan.codes, &plan.scales, &plan.zero_points}) {
    if (part->write) bytes += part->bytes;
  }
  return bytes;
}

HostBytes MakePart(const PartPlan& part, ScratchPool& scratch) {
  if (!part.write) return part.borrowed;
  const ScratchPool::Lease lease = scratch.Take(static_cast<size_t>(part.bytes));
  part.write(lease.bytes);
  return HostBytes(lease.bytes, lease.keep_alive);
}

class PlannedCodes final : public CodeSource {
 public:
  PlannedCodes(const PartPlan& part, ScratchPool& scratch) : part_(part), scratch_(scratch) {}

  CodeTile PreferredTile() const override { return part_.preferred_tile; }
  void Read(const CodeTile& tile, std::byte* out, int64_t stride) const override {
    part_.write_tile(tile, out, stride);
  }
  HostBytes ReadAll() const override { return MakePart(part_, scratch_); }

 private:
  const PartPlan& part_;
  ScratchPool& scratch_;
};

class PlannedCheckpoint final : public Checkpoint {
 public:
  // `tensors` are kept, since the plans point into them.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Make(const std::string& label,
                                                          TensorMap tensors,
                                                          const QuantConfig& config,
                                                          const OpenOptions& options,
                                                          Notices* notices) {
    NIBBLE_RETURN_IF_ERROR(CheckMethod(config));
    NIBBLE_ASSIGN_OR_RETURN(const Patterns patterns, CompilePatterns(options.layers));
    auto checkpoint = std::make_unique<PlannedCheckpoint>();
    checkpoint->label_ = label;
    checkpoint->tensors_ = std::move(tensors);
    const Context context{checkpoint->tensors_, config, notices};
    NoteUnusable(config.skipped, "the exceptions", notices);
    for (const Scheme& scheme : config.schemes) NoteUnusable(scheme.targets, "targets", notices);
    const DetectedLayers detected = DetectLayers(context);
    NIBBLE_RETURN_IF_ERROR(CheckMatching(detected, config, patterns));
    for (const auto& [name, layer] : detected) {
      if (!IsSelected(patterns, name)) continue;
      absl::StatusOr<LayerPlan> planned = PlanLayer(context, name, layer);
      if (!planned.ok()) return InLayer(name, planned.status());
      checkpoint->plans_.push_back(*std::move(planned));
    }
    if (checkpoint->plans_.empty()) {
      return absl::InvalidArgumentError(
          detected.empty()
              ? "expected at least one linear layer, received none"
              : fmt::format("layers: expected patterns of some of {} layers, received {} of none",
                            detected.size(), patterns.size()));
    }
    NIBBLE_RETURN_IF_ERROR(FuseLayers(options.fusing, &checkpoint->plans_, notices));
    for (LayerPlan& plan : checkpoint->plans_) {
      plan.layer.host_bytes = HostBytesOf(checkpoint->tensors_, plan);
      checkpoint->layers_.push_back(plan.layer);
    }
    checkpoint->notices_ = notices->Sentences();
    return checkpoint;
  }

  const std::vector<Layer>& layers() const override { return layers_; }
  const std::vector<std::string>& notices() const override { return notices_; }

  absl::StatusOr<CanonicalWeight> Load(size_t index) const override { return Load(index, false); }
  absl::StatusOr<CanonicalWeight> LoadForUpload(size_t index) const override {
    return Load(index, true);
  }

  void Release(size_t index) const override {
    if (index >= plans_.size()) return;
    for (const std::string& prefix : plans_[index].prefixes) {
      ForTensorsOf(tensors_, prefix, [](std::string_view, const TensorEntry& tensor) {
        if (tensor.file != nullptr) tensor.file->Release(tensor.data);
      });
    }
  }

  absl::Status CheckIntact() const override {
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.file != nullptr) NIBBLE_RETURN_IF_ERROR(tensor.file->CheckIntact());
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<CanonicalWeight> Load(size_t index, bool by_tiles) const try {
    if (index >= plans_.size()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: expected a layer below {}, received {}", label_, plans_.size(), index));
    }
    const LayerPlan& plan = plans_[index];
    for (const std::string& prefix : plan.prefixes) {
      ForTensorsOf(tensors_, prefix, [](std::string_view part, const TensorEntry& tensor) {
        // Not those of layers whose names go on from this one's; companions with a dot are small.
        if (part.find('.') != std::string_view::npos || tensor.file == nullptr) return;
        tensor.file->Populate(tensor.data);
      });
    }
    CanonicalWeight weight;
    weight.spec = plan.spec;
    if (by_tiles && plan.codes.write_tile) {
      weight.code_source = std::make_shared<PlannedCodes>(plan.codes, *scratch_);
    } else {
      weight.codes = Make(plan.codes);
    }
    weight.scales = Make(plan.scales);
    weight.nested_scales = Make(plan.nested_scales);
    weight.nested_map = Make(plan.nested_map);
    weight.nested_offset = plan.nested_offset;
    weight.zero_points = Make(plan.zero_points);
    weight.group_index = Make(plan.group_index);
    weight.bias = Make(plan.bias);
    weight.input_scale = plan.input_scale;
    if (absl::Status status = ValidateWeight(weight); !status.ok()) {
      return Labelled(label_, InLayer(plan.layer.name, status));
    }
    return weight;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(fmt::format("{}: no host memory for layer {}, {} bytes",
                                                    label_, Quoted(layers_[index].name),
                                                    layers_[index].bytes));
  }

  HostBytes Make(const PartPlan& part) const { return MakePart(part, *scratch_); }

  std::string label_;
  TensorMap tensors_;
  std::vector<LayerPlan> plans_;
  std::vector<Layer> layers_;
  std::vector<std::string> notices_;
  const std::shared_ptr<ScratchPool> scratch_ = std::make_shared<ScratchPool>();
};

RefusedLayer DescribeRefused(const TensorMap& tensors, const std::string& name,
                             const absl::Status& reason) {
  RefusedLayer refused{name, "", 0, reason};
  ForTensorsOf(tensors, name, [&](std::string_view part, const TensorEntry& tensor) {
    refused.stored +=
        fmt::format("{}{} {}", refused.stored.empty() ? "" : ", ", part, Describe(tensor));
    refused.bytes += static_cast<int64_t>(tensor.data.size());
  });
  return refused;
}

struct Files {
  QuantConfig config;
  TensorMap tensors;
};

absl::StatusOr<Files> ReadFiles(const std::string& directory, Notices* notices) {
  NIBBLE_ASSIGN_OR_RETURN(const ConfigTexts texts, ReadConfigTexts(directory));
  absl::StatusOr<QuantConfig> config = ParseQuantConfig(texts);
  if (!config.ok()) return Labelled(directory, config.status());
  NIBBLE_ASSIGN_OR_RETURN(TensorMap tensors, ReadDirectory(directory, *config, notices));
  return Files{*std::move(config), std::move(tensors)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory,
                                                             const OpenOptions& options) try {
  Notices notices;
  NIBBLE_ASSIGN_OR_RETURN(Files files, ReadFiles(directory, &notices));
  auto made =
      PlannedCheckpoint::Make(directory, std::move(files.tensors), files.config, options, &notices);
  if (!made.ok()) return Labelled(directory, made.status());
  return made;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError(fmt::format("{}: no host memory to open it", directory));
} catch (const std::exception& e) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", directory, e.what()));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::FromBytes(
    std::span<const std::byte> bytes, std::shared_ptr<const void> keep_alive,
    std::string_view config_json, std::string_view label, const OpenOptions& options) try {
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
                                      *config, options, &notices);
  if (!made.ok()) return Labelled(label, made.status());
  return made;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError(fmt::format("{}: no host memory to open it", label));
} catch (const std::exception& e) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", label, e.what()));
}

absl::StatusOr<Survey> SurveyDirectory(const std::string& directory) try {
  Notices notices;
  NIBBLE_ASSIGN_OR_RETURN(const Files files, ReadFiles(directory, &notices));
  const Context context{files.tensors, files.config, &notices};
  const absl::Status method = CheckMethod(files.config);
  Survey survey;
  const DetectedLayers detected = DetectLayers(context);
  if (absl::Status status = CheckMatching(detected, files.config, {}); !status.ok()) {
    return Labelled(directory, status);
  }
  for (const auto& [name, layer] : detected) {
    const absl::StatusOr<LayerPlan> plan =
        method.ok() ? PlanLayer(context, name, layer) : absl::StatusOr<LayerPlan>(method);
    if (plan.ok()) {
      survey.layers.push_back(plan->layer);
      survey.layers.back().host_bytes = HostBytesOf(files.tensors, *plan);
    } else {
      survey.refused.push_back(DescribeRefused(files.tensors, layer.tensors, plan.status()));
    }
  }
  survey.notices = notices.Sentences();
  return survey;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError(fmt::format("{}: no host memory to open it", directory));
} catch (const std::exception& e) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", directory, e.what()));
}

}  // namespace nibble::checkpoint
