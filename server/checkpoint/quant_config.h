// What a checkpoint's configuration says of its quantization. The tensors decide; this only breaks
// ties and gives the numbers that tensors do not carry.
#ifndef NIBBLE_SERVER_CHECKPOINT_QUANT_CONFIG_H_
#define NIBBLE_SERVER_CHECKPOINT_QUANT_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/tensor.h"

namespace nibble::checkpoint {

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
  bool per_layer = false;  // GPTQModel `dynamic`: bits and group size differ by layer
  // Every distinct FP8 block shape (rows, columns) that is named.
  std::vector<std::pair<int64_t, int64_t>> blocks;
  std::vector<int64_t> group_bits;   // compressed-tensors: num_bits of each group's weights
  std::optional<DType> model_dtype;  // torch_dtype, where it is F16, BF16 or F32
};

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
