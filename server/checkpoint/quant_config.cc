#include "server/checkpoint/quant_config.h"

#include <algorithm>
#include <string_view>

#include "fmt/format.h"
#include "nibble/status.h"
#include "server/checkpoint/config_json.h"
#include "server/checkpoint/layer_settings.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/strict_json.h"

namespace nibble::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return text;
}

// `implied_method` is what the file's name says where the text names no method; `dynamic` has the
// keys of that member in order.
absl::StatusOr<QuantConfig> ReadQuantization(const json& object, std::string_view implied_method,
                                             const std::vector<std::string>& dynamic) {
  QuantConfig config;
  config.present = true;
  config.method = implied_method;
  NIBBLE_RETURN_IF_ERROR(ReadString(object, "quant_method", &config.method));
  config.method = Lower(config.method);
  for (std::string_view key : {"wbits", "w_bit", "bits"}) {
    NIBBLE_RETURN_IF_ERROR(ReadInt(object, key, &config.bits));
  }
  for (std::string_view key : {"q_group_size", "group_size"}) {
    NIBBLE_RETURN_IF_ERROR(ReadInt(object, key, &config.group_size));
  }
  NIBBLE_RETURN_IF_ERROR(ReadBool(object, "desc_act", &config.desc_act));
  NIBBLE_RETURN_IF_ERROR(ReadBool(object, "sym", &config.sym));
  std::optional<bool> load_in_4bit;
  for (std::string_view key : {"_load_in_4bit", "load_in_4bit"}) {
    NIBBLE_RETURN_IF_ERROR(ReadBool(object, key, &load_in_4bit));
  }
  config.load_in_4bit = load_in_4bit.value_or(false);
  NIBBLE_RETURN_IF_ERROR(ReadString(object, "format", &config.format));
  if (config.method.empty() || config.method == "gptq") config.checkpoint_format = config.format;
  NIBBLE_RETURN_IF_ERROR(ReadString(object, "checkpoint_format", &config.checkpoint_format));
  std::optional<bool> marlin;
  NIBBLE_RETURN_IF_ERROR(ReadBool(object, "is_marlin_format", &marlin));
  if (marlin.value_or(false)) config.checkpoint_format = "marlin";
  NIBBLE_RETURN_IF_ERROR(ReadString(object, "packing_format", &config.packing_format));
  NIBBLE_RETURN_IF_ERROR(ReadString(object, "pack_dtype", &config.pack_dtype));
  if (const json* version = Member(object, "version"); version != nullptr && version->is_string()) {
    config.version = Lower(version->get<std::string>());
  }
  NIBBLE_RETURN_IF_ERROR(ReadString(object, "fmt", &config.fmt));
  NIBBLE_RETURN_IF_ERROR(ReadString(object, "model_file_base_name", &config.model_file_base_name));
  NIBBLE_RETURN_IF_ERROR(ReadBlock(object, "weight_block_size", &config.block));
  NIBBLE_RETURN_IF_ERROR(ReadDynamic(object, dynamic, &config));
  NIBBLE_RETURN_IF_ERROR(ReadSchemes(object, &config));
  NIBBLE_RETURN_IF_ERROR(ReadSkipLists(object, &config));
  if (config.method.empty() && object.contains("config_groups")) {
    config.method = "compressed-tensors";
  }
  return config;
}

const json* QuantizationOf(const json& object) {
  for (std::string_view key : {"quantization_config", "compression_config"}) {
    if (const json* found = Member(object, key)) return found;
  }
  return nullptr;
}

std::optional<DType> ModelDType(const json& object) {
  for (std::string_view key : {"torch_dtype", "dtype"}) {
    const json* value = Member(object, key);
    if (value == nullptr || !value->is_string()) continue;
    std::string_view name = value->get_ref<const std::string&>();
    if (name.starts_with("torch.")) name.remove_prefix(6);
    if (name == "bfloat16") return DType::kBF16;
    if (name == "float16") return DType::kF16;
    if (name == "float32") return DType::kF32;
  }
  return std::nullopt;
}

// Fields of the model that are not there, or of other types, are not looked at.
void ReadModel(const json& object, QuantConfig* config) {
  const json* type = Member(object, "model_type");
  if (type != nullptr && type->is_string()) config->model_type = type->get<std::string>();
  const json* tied = Member(object, "tie_word_embeddings");
  if (tied != nullptr && tied->is_boolean()) config->tie_embeddings = tied->get<bool>();
}

// config.json of a model. Multimodal models keep the language model's part in "text_config".
absl::StatusOr<QuantConfig> ReadModelConfig(const json& object,
                                            const std::vector<std::string>& dynamic) {
  const json* text_config = Member(object, "text_config");
  if (text_config != nullptr && !text_config->is_object()) text_config = nullptr;
  const json* quantization = QuantizationOf(object);
  if (quantization == nullptr && text_config != nullptr)
    quantization = QuantizationOf(*text_config);
  if (quantization == nullptr) {
    for (std::string_view key :
         {"quant_method", "bits", "w_bit", "config_groups", "load_in_4bit"}) {
      if (object.contains(key)) quantization = &object;
    }
  }
  QuantConfig config;
  if (quantization != nullptr) {
    if (!quantization->is_object()) {
      return WrongType("quantization_config", "an object", *quantization);
    }
    NIBBLE_ASSIGN_OR_RETURN(config, ReadQuantization(*quantization, "", dynamic));
  }
  config.model_dtype = ModelDType(object);
  ReadModel(object, &config);
  if (text_config != nullptr) {
    if (!config.model_dtype) config.model_dtype = ModelDType(*text_config);
    ReadModel(*text_config, &config);
  }
  return config;
}

template <typename T>
absl::Status Reconcile(std::string_view field, std::optional<T>* first,
                       const std::optional<T>& second) {
  if (*first && second && **first != *second) {
    return absl::InvalidArgumentError(
        fmt::format("{}: the configuration files disagree, {} and {}", field, **first, *second));
  }
  if (!*first) *first = second;
  return absl::OkStatus();
}

absl::Status MergeInto(QuantConfig* first, const QuantConfig& second) {
  NIBBLE_RETURN_IF_ERROR(Reconcile("bits", &first->bits, second.bits));
  NIBBLE_RETURN_IF_ERROR(Reconcile("group_size", &first->group_size, second.group_size));
  NIBBLE_RETURN_IF_ERROR(Reconcile("desc_act", &first->desc_act, second.desc_act));
  if (!first->sym) first->sym = second.sym;
  if (first->checkpoint_format.empty()) {
    first->checkpoint_format = second.checkpoint_format;
  } else if (!second.checkpoint_format.empty() &&
             first->checkpoint_format != second.checkpoint_format) {
    return absl::InvalidArgumentError(
        fmt::format("checkpoint_format: the configuration files disagree, {} and {}",
                    Quoted(first->checkpoint_format), Quoted(second.checkpoint_format)));
  }
  if (first->model_file_base_name.empty()) {
    first->model_file_base_name = second.model_file_base_name;
  }
  if (first->dynamic.empty()) first->dynamic = second.dynamic;
  if (first->skipped.empty()) first->skipped = second.skipped;
  return absl::OkStatus();
}

absl::Status InFile(std::string_view file, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", file, MessageOf(status)));
}

}  // namespace

absl::StatusOr<QuantConfig> ParseQuantConfig(const ConfigTexts& texts) {
  QuantConfig config;
  if (!texts.config.empty()) {
    const absl::StatusOr<json> object = ParseJsonObject(texts.config, kMaxConfigBytes);
    if (!object.ok()) return InFile("config.json", object.status());
    absl::StatusOr<QuantConfig> read =
        ReadModelConfig(*object, KeysInOrder(texts.config, "dynamic"));
    if (!read.ok()) return InFile("config.json", read.status());
    config = *std::move(read);
  }
  struct Standalone {
    std::string_view file;
    const std::string& text;
    std::string_view method;
  };
  for (const Standalone& extra : {Standalone{"quantize_config.json", texts.quantize_config, "gptq"},
                                  Standalone{"quant_config.json", texts.quant_config, "awq"}}) {
    if (extra.text.empty()) continue;
    const absl::StatusOr<json> object = ParseJsonObject(extra.text, kMaxConfigBytes);
    if (!object.ok()) return InFile(extra.file, object.status());
    absl::StatusOr<QuantConfig> read =
        ReadQuantization(*object, extra.method, KeysInOrder(extra.text, "dynamic"));
    if (!read.ok()) return InFile(extra.file, read.status());
    if (!config.present) {
      read->model_dtype = config.model_dtype;
      read->model_type = config.model_type;
      read->tie_embeddings = config.tie_embeddings;
      config = *std::move(read);
    } else if (absl::Status status = MergeInto(&config, *read); !status.ok()) {
      return InFile(extra.file, status);
    }
  }
  return config;
}

}  // namespace nibble::checkpoint
