// bitsandbytes 4-bit (NF4, FP4), plain and nested, as saved by transformers.
// Layout: bitsandbytes/functional.py (QuantState) and bitsandbytes/nn/modules.py.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "fmt/format.h"
#include "nibble/numeric.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/quoted.h"
#include "server/checkpoint/strict_json.h"

namespace nibble::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kMaxQuantStateBytes = size_t{64} << 10;
constexpr std::array<int64_t, 8> kBlockSizes = {32, 64, 128, 256, 512, 1024, 2048, 4096};

absl::Status Field(std::string_view key, std::string_view expected, const json& state) {
  const auto it = state.find(key);
  return absl::InvalidArgumentError(fmt::format(
      "quant_state.{}: expected {}, received {}", key, expected,
      it == state.end() ? std::string("nothing")
                        : Quoted(it->dump(-1, ' ', true, json::error_handler_t::replace))));
}

std::optional<int64_t> PositiveInt(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<uint64_t>();
  if (number == 0 || number > (uint64_t{1} << 62)) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::optional<int64_t> PositiveInt(const json& state, std::string_view key) {
  const auto it = state.find(key);
  return it == state.end() ? std::nullopt : PositiveInt(*it);
}

std::string StringOf(const json& state, std::string_view key) {
  const auto it = state.find(key);
  return it == state.end() || !it->is_string() ? std::string() : it->get<std::string>();
}

// Reads quant_state into the spec and, where the layer is nested, the offset.
absl::Status ReadQuantState(const TensorEntry& entry, LayerPlan* plan) {
  WeightSpec& spec = plan->spec;
  NIBBLE_RETURN_IF_ERROR(ExpectDType("quant_state", entry, {"U8"}));
  const std::string_view text(reinterpret_cast<const char*>(entry.data.data()), entry.data.size());
  absl::StatusOr<json> parsed = ParseJsonObject(text, kMaxQuantStateBytes);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(fmt::format("quant_state: {}", MessageOf(parsed.status())));
  }
  const json& state = *parsed;

  const std::string_view type = FormatName(spec.format);
  if (StringOf(state, "quant_type") != type) {
    return Field("quant_type", fmt::format("\"{}\" as in the tensor's name", type), state);
  }
  const std::optional<int64_t> block_size = PositiveInt(state, "blocksize");
  if (!block_size ||
      std::find(kBlockSizes.begin(), kBlockSizes.end(), *block_size) == kBlockSizes.end()) {
    return Field("blocksize", "a power of two from 32 to 4096", state);
  }
  spec.block_size = *block_size;

  const std::string dtype = StringOf(state, "dtype");
  if (dtype == "float16") {
    spec.dtype = DType::kF16;
  } else if (dtype == "bfloat16") {
    spec.dtype = DType::kBF16;
  } else if (dtype == "float32") {
    spec.dtype = DType::kF32;
  } else {
    return Field("dtype", "\"float16\", \"bfloat16\" or \"float32\"", state);
  }

  const auto shape = state.find("shape");
  std::optional<int64_t> n;
  std::optional<int64_t> k;
  if (shape != state.end() && shape->is_array() && shape->size() == 2) {
    n = PositiveInt((*shape)[0]);
    k = PositiveInt((*shape)[1]);
  }
  if (!n || !k) return Field("shape", "[N, K], both positive", state);
  spec.n = *n;
  spec.k = *k;

  if (!spec.nested) return absl::OkStatus();
  const std::optional<int64_t> nested_block_size = PositiveInt(state, "nested_blocksize");
  if (!nested_block_size) return Field("nested_blocksize", "a positive integer", state);
  spec.nested_block_size = *nested_block_size;
  if (StringOf(state, "nested_dtype") != "float32") {
    return Field("nested_dtype", "\"float32\"", state);
  }
  const auto offset = state.find("nested_offset");
  if (offset == state.end() || !offset->is_number()) {
    return Field("nested_offset", "a number", state);
  }
  const auto value = offset->get<double>();
  if (!(std::abs(value) <= std::numeric_limits<float>::max())) {
    return Field("nested_offset", "a finite binary32", state);
  }
  plan->nested_offset = static_cast<float>(value);
  return absl::OkStatus();
}

// The file's decode table must be the built-in one: kernels never read it. -0 equals +0, which is
// how FP4's code 8 is stored.
absl::Status CheckQuantMap(const TensorEntry& map, Format format) {
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight.quant_map", map, {"F32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectShape("weight.quant_map", map, {16}));
  const float* table = format == Format::kNF4 ? kNF4Table : kFP4Table;
  for (int i = 0; i < 16; ++i) {
    const float value = LoadAsFloat(map.data.data(), DType::kF32, i);
    if (!(value == table[i])) {
      return absl::InvalidArgumentError(
          fmt::format("weight.quant_map[{}]: expected {}, the {} table, received {}", i, table[i],
                      FormatName(format), value));
    }
  }
  return absl::OkStatus();
}

// `count` elements at least: one writer rounds the counts up.
absl::Status ExpectAtLeast(const Context& context, std::string_view prefix, std::string_view tensor,
                           const TensorEntry& entry, int64_t bytes) {
  const auto received = static_cast<int64_t>(entry.data.size());
  if (received < bytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected at least {} bytes, received {} ({})", tensor, bytes, received,
                    Describe(entry)));
  }
  if (received > bytes) {
    context.notices->Add("tensor is longer than its layer needs, the tail is ignored",
                         fmt::format("{}.{}", prefix, tensor));
  }
  return absl::OkStatus();
}

absl::Status AttachNested(const Context& context, const std::string& prefix, int64_t count,
                          const TensorEntry& absmax, LayerPlan* plan) {
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* scales,
                          context.Require(prefix, ".weight.nested_absmax"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* map,
                          context.Require(prefix, ".weight.nested_quant_map"));
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight.nested_absmax", *scales, {"F32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight.nested_quant_map", *map, {"F32"}));
  NIBBLE_RETURN_IF_ERROR(ExpectShape("weight.nested_quant_map", *map, {256}));
  for (int i = 0; i < 256; ++i) {
    const float value = LoadAsFloat(map->data.data(), DType::kF32, i);
    if (!(std::abs(value) <= 1.0f)) {
      return absl::InvalidArgumentError(fmt::format(
          "weight.nested_quant_map[{}]: expected a value in [-1, 1], received {}", i, value));
    }
  }
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight.absmax", absmax, {"U8"}));
  const int64_t bytes = 4 * count;
  NIBBLE_RETURN_IF_ERROR(ExpectAtLeast(context, prefix, "weight.nested_absmax", *scales, bytes));
  plan->nested_scales = Borrow(*scales, bytes);
  plan->nested_map = Borrow(*map);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerPlan> PlanBitsandbytes(const Context& context, const std::string& prefix) {
  constexpr std::string_view kNf4State = ".weight.quant_state.bitsandbytes__nf4";
  constexpr std::string_view kFp4State = ".weight.quant_state.bitsandbytes__fp4";
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* codes, context.Require(prefix, ".weight"));
  const TensorEntry* fp4_state = context.Find(prefix, kFp4State);
  if (fp4_state != nullptr && context.Find(prefix, kNf4State) != nullptr) {
    return absl::InvalidArgumentError("quant_state: both an nf4 and an fp4 tensor are present");
  }
  const TensorEntry* state = fp4_state;
  if (state == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(state, context.Require(prefix, kNf4State));
  }
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* absmax, context.Require(prefix, ".weight.absmax"));
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* map, context.Require(prefix, ".weight.quant_map"));

  LayerPlan plan;
  WeightSpec& spec = plan.spec;
  spec.format = fp4_state != nullptr ? Format::kFP4 : Format::kNF4;
  spec.nested = context.Find(prefix, ".weight.nested_absmax") != nullptr || absmax->dtype == "U8";
  NIBBLE_RETURN_IF_ERROR(ReadQuantState(*state, &plan));
  NIBBLE_RETURN_IF_ERROR(CheckQuantMap(*map, spec.format));

  NIBBLE_ASSIGN_OR_RETURN(const WeightGeometry geometry, GeometryOf(spec));
  NIBBLE_RETURN_IF_ERROR(ExpectAtLeast(context, prefix, "weight", *codes, geometry.code_bytes));
  plan.codes = Borrow(*codes, geometry.code_bytes);
  if (spec.nested) {
    NIBBLE_RETURN_IF_ERROR(
        AttachNested(context, prefix, geometry.nested_scale_count, *absmax, &plan));
  } else {
    NIBBLE_RETURN_IF_ERROR(ExpectDType("weight.absmax", *absmax, {"F32"}));
  }
  NIBBLE_RETURN_IF_ERROR(
      ExpectAtLeast(context, prefix, "weight.absmax", *absmax, geometry.scale_bytes));
  plan.scales = Borrow(*absmax, geometry.scale_bytes);
  NIBBLE_RETURN_IF_ERROR(AttachBias(context, prefix, &plan));
  return FinishPlan(prefix, "bitsandbytes", std::move(plan));
}

}  // namespace nibble::checkpoint
