// bitsandbytes 4-bit as saved by transformers: bitsandbytes/functional.py (QuantState.as_dict),
// transformers/utils/quantization_config.py (BitsAndBytesConfig).
#include <cstring>

#include "fmt/format.h"
#include "server/tools/dialect_writer.h"

namespace nibble::tools {
namespace {

using checkpoint::TensorDeclaration;

// Digits of any binary32 as the shortest binary64: "-1.1754943508222875e-38".
constexpr size_t kMaxOffsetBytes = 24;

std::string_view TorchName(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
    default:
      return "bfloat16";
  }
}

// The JSON text of quant_state. It ends in spaces so that its length does not depend on the offset.
std::string QuantState(const WeightSpec& spec, float nested_offset) {
  std::string text =
      fmt::format(R"({{"quant_type": "{}", "blocksize": {}, "dtype": "{}", "shape": [{}, {}])",
                  FormatName(spec.format), spec.block_size, TorchName(spec.dtype), spec.n, spec.k);
  if (spec.nested) {
    const std::string offset = fmt::format("{}", static_cast<double>(nested_offset));
    text += fmt::format(
        R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {}}}{})",
        spec.nested_block_size, offset, std::string(kMaxOffsetBytes - offset.size(), ' '));
    return text;
  }
  return text + "}";
}

HostBytes BytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return HostBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

// The library keeps +0.0 at FP4's code 8.
HostBytes QuantMap(Format format) {
  std::vector<std::byte> bytes(64);
  for (size_t i = 0; i < 16; ++i) {
    const float value = (format == Format::kNF4 ? kNF4Table[i] : kFP4Table[i]) + 0.0f;
    std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  return HostBytes(std::move(bytes));
}

class Writer final : public DialectWriter {
 public:
  std::string Refusal(const WeightSpec&) const override { return ""; }

  std::vector<TensorDeclaration> Declare(const std::string& prefix,
                                         const WeightSpec& spec) const override {
    const int64_t blocks = CeilDiv(spec.n * spec.k, spec.block_size);
    const auto state_bytes = static_cast<int64_t>(QuantState(spec, 0.0f).size());
    std::vector<TensorDeclaration> tensors = {
        {prefix + ".weight", "U8", {CeilDiv(spec.n * spec.k, 2), 1}},
        {prefix + ".weight.absmax", spec.nested ? "U8" : "F32", {blocks}},
        {prefix + ".weight.quant_map", "F32", {16}},
        {fmt::format("{}.weight.quant_state.bitsandbytes__{}", prefix, FormatName(spec.format)),
         "U8",
         {state_bytes}}};
    if (spec.nested) {
      tensors.push_back(
          {prefix + ".weight.nested_absmax", "F32", {CeilDiv(blocks, spec.nested_block_size)}});
      tensors.push_back({prefix + ".weight.nested_quant_map", "F32", {256}});
    }
    return tensors;
  }

  std::vector<OutputTensor> Write(const std::string& prefix,
                                  const CanonicalWeight& weight) const override {
    std::vector<HostBytes> data = {weight.codes, weight.scales, QuantMap(weight.spec.format),
                                   BytesOf(QuantState(weight.spec, weight.nested_offset))};
    if (weight.spec.nested) {
      data.push_back(weight.nested_scales);
      data.push_back(weight.nested_map);
    }
    std::vector<OutputTensor> tensors;
    for (TensorDeclaration& declaration : Declare(prefix, weight.spec)) {
      tensors.push_back({std::move(declaration), data[tensors.size()]});
    }
    return tensors;
  }

  nlohmann::ordered_json Config(const DialectConfig& config) const override {
    return {{"_load_in_4bit", true},
            {"_load_in_8bit", false},
            {"bnb_4bit_compute_dtype", TorchName(config.model_dtype)},
            {"bnb_4bit_quant_storage", "uint8"},
            {"bnb_4bit_quant_type", FormatName(config.target.spec.format)},
            {"bnb_4bit_use_double_quant", config.target.spec.nested},
            {"llm_int8_enable_fp32_cpu_offload", false},
            {"llm_int8_has_fp16_weight", false},
            {"llm_int8_skip_modules", config.kept},
            {"llm_int8_threshold", 6.0},
            {"load_in_4bit", true},
            {"load_in_8bit", false},
            {"quant_method", "bitsandbytes"}};
  }
};

}  // namespace

const DialectWriter& BitsandbytesWriter() {
  static const Writer writer;
  return writer;
}

const DialectWriter& DialectOf(Format format) {
  return format == Format::kNF4 || format == Format::kFP4 ? BitsandbytesWriter()
                                                          : CompressedTensorsWriter();
}

}  // namespace nibble::tools
