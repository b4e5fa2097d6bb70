// What a checkpoint's configuration says of its quantization. The tensors decide; this only breaks
// ties and gives the numbers that tensors do not carry.
#ifndef NIBBLE_SERVER_CHECKPOINT_QUANT_CONFIG_H_
#define NIBBLE_SERVER_CHECKPOINT_QUANT_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/tensor.h"
#include "server/checkpoint/module_match.h"

namespace nibble::checkpoint {

// Rows and columns of an FP8 scale block.
using BlockShape = std::pair<int64_t, int64_t>;

// compressed-tensors: the weights of one of the config_groups.
struct Scheme {
  std::string name;  // "group_0", or a preset's name
  ModuleList targets;
  bool has_weights = false;  // else its modules are not quantized
  std::optional<int64_t> bits;
  std::string type;  // "int", "float"
  std::optional<bool> symmetric;
  std::string strategy;  // "tensor", "channel", "group", "block", ...
  std::optional<int64_t> group_size;
  std::optional<BlockShape> block;
  bool column_order = true;  // false: activation order, with a weight_g_idx
};

// GPTQModel: one entry of `dynamic`. The first one whose pattern matches counts.
struct DynamicRule {
  NamePattern pattern;
  bool excluded = false;
  std::optional<int64_t> bits;
  std::optional<int64_t> group_size;
  std::optional<bool> sym;
};

struct QuantConfig {
  bool present = false;
  std::string method;                 // quant_method in lower case; empty where none is given
  std::optional<int64_t> bits;        // also w_bit, wbits
  std::optional<int64_t> group_size;  // also q_group_size; -1 is a whole column
  std::optional<bool> desc_act;
  std::optional<bool> sym;
  bool load_in_4bit = false;      // bitsandbytes
  std::string checkpoint_format;  // GPTQ: "gptq", "gptq_v2", ...; empty means "gptq"
  std::string packing_format;     // auto-round
  std::string pack_dtype;         // GPTQModel
  std::string version;            // AWQ, lower case
  std::string format;             // compressed-tensors
  std::string fmt;                // FP8: "e4m3"
  std::string model_file_base_name;
  std::optional<BlockShape> block;   // weight_block_size
  std::vector<DynamicRule> dynamic;  // in the order of the file
  std::vector<Scheme> schemes;       // compressed-tensors: config_groups
  ModuleList skipped;                // what every dialect's list of exceptions names

  // Of the model, not of its quantization.
  std::optional<DType> model_dtype;    // torch_dtype, where it is F16, BF16 or F32
  std::string model_type;              // "llama"
  std::optional<bool> tie_embeddings;  // tie_word_embeddings
};

// What the configuration says of one layer.
struct LayerSettings {
  bool skipped = false;  // a list of exceptions names it
  std::optional<int64_t> bits;
  std::optional<int64_t> group_size;
  std::optional<bool> sym;
  const Scheme* scheme = nullptr;  // into QuantConfig::schemes; null: none, or none that is known
  std::optional<BlockShape> block;
};
LayerSettings SettingsOf(const QuantConfig& config, std::string_view layer);

// The three places where a configuration may stand, in order of precedence; empty where absent.
struct ConfigTexts {
  std::string config;           // config.json, or the quantization_config object alone
  std::string quantize_config;  // quantize_config.json
  std::string quant_config;     // quant_config.json
};

// kInvalidArgument: malformed, a field of the wrong type, or two texts that disagree on bits,
// group_size, desc_act or checkpoint_format.
absl::StatusOr<QuantConfig> ParseQuantConfig(const ConfigTexts& texts);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_QUANT_CONFIG_H_
