// compressed-tensors "pack-quantized" (INT4) and "float-quantized" (FP8), weights alone:
// compressed_tensors/compressors/{pack_quantized,naive_quantized}, quantization/quant_args.py.
#include <cstring>

#include "fmt/format.h"
#include "server/tools/dialect_writer.h"

namespace nibble::tools {
namespace {

using checkpoint::TensorDeclaration;
using Json = nlohmann::ordered_json;

int64_t Groups(const WeightSpec& spec) { return CeilDiv(spec.k, spec.group_size); }

// I32 [N, ceil(K/8)]: the canonical codes, each row filled up to whole words.
HostBytes PackedCodes(const CanonicalWeight& weight) {
  const WeightSpec& spec = weight.spec;
  if (spec.k % 8 == 0) return weight.codes;
  const auto row_bytes = static_cast<size_t>(CeilDiv(spec.k, 2));
  const auto word_bytes = static_cast<size_t>(4 * CeilDiv(spec.k, 8));
  std::vector<std::byte> words(static_cast<size_t>(spec.n) * word_bytes);
  for (size_t n = 0; n < static_cast<size_t>(spec.n); ++n) {
    std::memcpy(words.data() + n * word_bytes, weight.codes.data() + n * row_bytes, row_bytes);
  }
  return HostBytes(std::move(words));
}

// I32 [ceil(N/8), G]: output n in nibble n % 8 of its word.
HostBytes PackedZeroPoints(const CanonicalWeight& weight) {
  const int64_t groups = Groups(weight.spec);
  std::vector<std::byte> words(static_cast<size_t>(4 * CeilDiv(weight.spec.n, 8) * groups));
  for (int64_t n = 0; n < weight.spec.n; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const std::byte zero = weight.zero_points.data()[n * groups + g];
      words[static_cast<size_t>(4 * (n / 8 * groups + g) + n % 8 / 2)] |= zero << (n % 2 * 4);
    }
  }
  return HostBytes(std::move(words));
}

HostBytes ShapeBytes(const WeightSpec& spec) {
  std::vector<std::byte> bytes(16);
  std::memcpy(bytes.data(), &spec.n, 8);
  std::memcpy(bytes.data() + 8, &spec.k, 8);
  return HostBytes(std::move(bytes));
}

std::vector<int64_t> Fp8ScaleShape(const WeightSpec& spec) {
  switch (spec.scale_layout) {
    case ScaleLayout::kTensor:
      return {1};
    case ScaleLayout::kChannel:
      return {spec.n, 1};
    case ScaleLayout::kBlock:
      break;
  }
  return {CeilDiv(spec.n, spec.scale_block_n), CeilDiv(spec.k, spec.scale_block_k)};
}

// Null members are written: the library's own configurations have them.
Json WeightsOf(const QuantizeTarget& target) {
  const WeightSpec& spec = target.spec;
  const bool int4 = spec.format == Format::kInt4;
  Json weights = {{"actorder", nullptr},
                  {"block_structure", nullptr},
                  {"dynamic", false},
                  {"group_size", nullptr},
                  {"num_bits", int4 ? 4 : 8},
                  {"observer", target.options.search_scale ? "mse" : "minmax"},
                  {"observer_kwargs", Json::object()},
                  {"strategy", ScaleLayoutName(spec.scale_layout)},
                  {"symmetric", !(int4 && spec.has_zero_points)},
                  {"type", int4 ? "int" : "float"}};
  if (int4) {
    const bool column = spec.group_size == kWholeColumn;
    weights["strategy"] = column ? "channel" : "group";
    if (!column) weights["group_size"] = spec.group_size;
  } else if (spec.scale_layout == ScaleLayout::kBlock) {
    weights["block_structure"] = {spec.scale_block_n, spec.scale_block_k};
  }
  return weights;
}

class Writer final : public DialectWriter {
 public:
  std::string Refusal(const WeightSpec& spec) const override {
    if (spec.format != Format::kInt4 || spec.k % spec.group_size == 0) return "";
    return fmt::format("its {} inputs are no multiple of the group of {}", spec.k, spec.group_size);
  }

  std::vector<TensorDeclaration> Declare(const std::string& prefix,
                                         const WeightSpec& spec) const override {
    const std::string scale_dtype(DTypeName(spec.scale_dtype));
    if (spec.format == Format::kFP8) {
      return {{prefix + ".weight", "F8_E4M3", {spec.n, spec.k}},
              {prefix + ".weight_scale", scale_dtype, Fp8ScaleShape(spec)}};
    }
    std::vector<TensorDeclaration> tensors = {
        {prefix + ".weight_packed", "I32", {spec.n, CeilDiv(spec.k, 8)}},
        {prefix + ".weight_scale", scale_dtype, {spec.n, Groups(spec)}},
        {prefix + ".weight_shape", "I64", {2}}};
    if (spec.has_zero_points) {
      tensors.push_back({prefix + ".weight_zero_point", "I32", {CeilDiv(spec.n, 8), Groups(spec)}});
    }
    return tensors;
  }

  std::vector<OutputTensor> Write(const std::string& prefix,
                                  const CanonicalWeight& weight) const override {
    std::vector<HostBytes> data;
    if (weight.spec.format == Format::kFP8) {
      data = {weight.codes, weight.scales};
    } else {
      data = {PackedCodes(weight), weight.scales, ShapeBytes(weight.spec)};
      if (weight.spec.has_zero_points) data.push_back(PackedZeroPoints(weight));
    }
    std::vector<OutputTensor> tensors;
    for (TensorDeclaration& declaration : Declare(prefix, weight.spec)) {
      tensors.push_back({std::move(declaration), data[tensors.size()]});
    }
    return tensors;
  }

  Json Config(const DialectConfig& config) const override {
    const Json group = {{"input_activations", nullptr},
                        {"output_activations", nullptr},
                        {"targets", Json::array({"Linear"})},
                        {"weights", WeightsOf(config.target)}};
    const bool int4 = config.target.spec.format == Format::kInt4;
    return {{"config_groups", {{"group_0", group}}},
            {"format", int4 ? "pack-quantized" : "float-quantized"},
            {"global_compression_ratio", nullptr},
            {"ignore", config.kept},
            {"kv_cache_scheme", nullptr},
            {"quant_method", "compressed-tensors"},
            {"quantization_status", "compressed"}};
  }
};

}  // namespace

const DialectWriter& CompressedTensorsWriter() {
  static const Writer writer;
  return writer;
}

}  // namespace nibble::tools
