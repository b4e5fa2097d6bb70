// FP8 E4M3 with a scale per tensor, output channel or block, under the names of compressed-tensors
// ("float-quantized"), of plain and FBGEMM FP8 and of DeepSeek-style block FP8.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "fmt/format.h"
#include "nibble/numeric.h"
#include "server/checkpoint/dialect.h"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {
namespace {

// The part of the stored scales that the weight uses.
struct ScaleGrid {
  int64_t rows = 1;
  int64_t cols = 1;
};

absl::StatusOr<const TensorEntry*> FindScale(const Context& context, const std::string& prefix,
                                             std::string_view* name) {
  const TensorEntry* scale = context.Find(prefix, ".weight_scale");
  const TensorEntry* inverse = context.Find(prefix, ".weight_scale_inv");
  if (scale != nullptr && inverse != nullptr) {
    return absl::InvalidArgumentError("both weight_scale and weight_scale_inv are present");
  }
  if (scale == nullptr && inverse == nullptr) {
    if (context.Find(prefix, ".scale") != nullptr) {
      return Refused("FP8 with its scales in a tensor \"scale\"",
                     "weight_scale or weight_scale_inv beside the weight is");
    }
    return absl::InvalidArgumentError(
        fmt::format("tensor {} is missing (nor is there a weight_scale_inv): an F8_E4M3 weight "
                    "means nothing without its scale",
                    Quoted(prefix + ".weight_scale")));
  }
  *name = scale != nullptr ? "weight_scale" : "weight_scale_inv";
  return scale != nullptr ? scale : inverse;
}

// Rows and columns of a scale block. The shapes cannot tell them where the last block is ragged.
absl::Status ReadBlock(const Context& context, std::string_view name, const TensorEntry& scale,
                       const LayerSettings& settings, WeightSpec* spec) {
  if (settings.block) {
    spec->scale_block_n = settings.block->first;
    spec->scale_block_k = settings.block->second;
    return absl::OkStatus();
  }
  if (settings.scheme != nullptr && settings.scheme->strategy == "group") {
    return Refused("FP8 with a scale per group of inputs",
                   "one scale a tensor, output channel or block is");
  }
  spec->scale_block_n = 128;
  spec->scale_block_k = 128;
  if (context.config.present ||
      scale.shape != std::vector<int64_t>{CeilDiv(spec->n, 128), CeilDiv(spec->k, 128)}) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} looks like one scale a block, but the configuration gives no "
                    "weight_block_size",
                    name, Describe(scale)));
  }
  context.notices->Add("no configuration gives the block of FP8 scales, 128x128 is taken",
                       "weight_block_size");
  return absl::OkStatus();
}

// A group of compressed-tensors must say what the scales look like.
absl::Status CheckScheme(const LayerSettings& settings, ScaleLayout layout) {
  const Scheme* scheme = settings.scheme;
  if (scheme == nullptr || !scheme->has_weights) return absl::OkStatus();
  if ((!scheme->type.empty() && scheme->type != "float") || scheme->bits.value_or(8) != 8) {
    return absl::InvalidArgumentError(
        fmt::format("weight: expected type {} of {} bits as in {}, received F8_E4M3",
                    Quoted(scheme->type.empty() ? "float" : scheme->type), scheme->bits.value_or(8),
                    Quoted(scheme->name)));
  }
  const std::string_view found = ScaleLayoutName(layout);
  const std::string& said = scheme->strategy;
  // One scale is one scale, whatever its strategy is called.
  if (layout == ScaleLayout::kTensor || said == found) return absl::OkStatus();
  if (said != "tensor" && said != "channel" && said != "block") return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("weight_scale: expected strategy {} as in {}, received one scale a {}",
                  Quoted(said), Quoted(scheme->name), found));
}

// Branches on the shape: the names say nothing of it.
absl::StatusOr<ScaleGrid> ReadScaleLayout(const Context& context, const std::string& prefix,
                                          std::string_view name, const TensorEntry& scale,
                                          const LayerSettings& settings, WeightSpec* spec) {
  ScaleGrid grid;
  const std::vector<int64_t>& shape = scale.shape;
  if (scale.elements() == 1) {
    spec->scale_layout = ScaleLayout::kTensor;
    return grid;
  }
  const bool column = shape.size() == 2 && shape[1] == 1;
  if ((shape.size() == 1 || column) && shape[0] == spec->n) {
    spec->scale_layout = ScaleLayout::kChannel;
    grid.rows = spec->n;
    return grid;
  }
  if (shape.size() == 1 && (shape[0] == 2 || shape[0] == 3)) {
    return Refused(fmt::format("FP8 with {} scales for the parts of a fused layer", shape[0]),
                   "one scale a tensor, output channel or block is");
  }
  if (shape.size() != 2) {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected one scale, one for each of {} outputs, or a grid of blocks, "
                    "received {}",
                    name, spec->n, Describe(scale)));
  }
  NIBBLE_RETURN_IF_ERROR(ReadBlock(context, name, scale, settings, spec));
  spec->scale_layout = ScaleLayout::kBlock;
  grid.rows = CeilDiv(spec->n, spec->scale_block_n);
  grid.cols = CeilDiv(spec->k, spec->scale_block_k);
  if (shape[0] < grid.rows || shape[1] < grid.cols) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: expected at least [{}, {}] for blocks of {}x{}, received {}", name, grid.rows,
        grid.cols, spec->scale_block_n, spec->scale_block_k, Describe(scale)));
  }
  if (shape[0] != grid.rows || shape[1] != grid.cols) {
    context.notices->Add("the grid of scales is larger than its weight, the rest is ignored",
                         fmt::format("{}.{}", prefix, name));
  }
  return grid;
}

// F8_E8M0: 2^(b - 127), 0xFF is NaN. Files also call it U8.
bool HoldsExponents(const TensorEntry& scale) {
  return scale.dtype == "F8_E8M0" || scale.dtype == "U8";
}

float ExponentToFloat(uint8_t exponent) {
  if (exponent == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, exponent - 127);
}

// Fills `out` with the grid's part of `scale`; exponents become binary32.
void CopyScales(const TensorEntry& scale, const ScaleGrid& grid, std::span<std::byte> out) {
  const bool exponents = HoldsExponents(scale);
  const int64_t stored_bytes = DTypeBits(scale.dtype) / 8;
  const int64_t out_bytes = exponents ? 4 : stored_bytes;
  const int64_t stride = scale.shape.size() == 2 ? scale.shape[1] : 1;
  std::byte* to = out.data();
  for (int64_t row = 0; row < grid.rows; ++row) {
    const std::byte* from = scale.data.data() + row * stride * stored_bytes;
    for (int64_t col = 0; col < grid.cols; ++col, from += stored_bytes, to += out_bytes) {
      if (exponents) {
        const float value = ExponentToFloat(static_cast<uint8_t>(*from));
        std::memcpy(to, &value, sizeof(value));
      } else {
        std::memcpy(to, from, static_cast<size_t>(stored_bytes));
      }
    }
  }
}

absl::Status AttachInputScale(const Context& context, const std::string& prefix, LayerPlan* plan) {
  const TensorEntry* scale = context.Find(prefix, ".input_scale");
  if (scale == nullptr) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const DType dtype, FloatDType("input_scale", *scale));
  if (scale->elements() != 1) {
    return absl::InvalidArgumentError(
        fmt::format("input_scale: expected one element, received {}", Describe(*scale)));
  }
  plan->input_scale = LoadAsFloat(scale->data.data(), dtype, 0);
  if (!(plan->input_scale > 0.0f) || std::isinf(plan->input_scale)) {
    return absl::InvalidArgumentError(fmt::format(
        "input_scale: expected a positive finite number, received {}", plan->input_scale));
  }
  plan->spec.has_input_scale = true;
  return absl::OkStatus();
}

absl::Status CheckZeroPoint(const Context& context, const std::string& prefix) {
  const TensorEntry* zeros = context.Find(prefix, ".weight_zero_point");
  if (zeros == nullptr) return absl::OkStatus();
  for (std::byte b : zeros->data) {
    if (b != std::byte{0}) return Refused("FP8 with zero points", "symmetric FP8 is");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerPlan> PlanFp8(const Context& context, const std::string& prefix) {
  const QuantConfig& config = context.config;
  const LayerSettings settings = SettingsOf(config, prefix);
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* codes, context.Require(prefix, ".weight"));
  if (!config.fmt.empty() && config.fmt != "e4m3") {
    return Refused(fmt::format("FP8 of fmt {}", Quoted(config.fmt)), "fmt \"e4m3\" is");
  }
  NIBBLE_RETURN_IF_ERROR(ExpectDType("weight", *codes, {"F8_E4M3"}));
  NIBBLE_RETURN_IF_ERROR(ExpectMatrix("weight", *codes));
  std::string_view name;
  NIBBLE_ASSIGN_OR_RETURN(const TensorEntry* scale, FindScale(context, prefix, &name));
  NIBBLE_RETURN_IF_ERROR(CheckZeroPoint(context, prefix));

  LayerPlan plan;
  WeightSpec& spec = plan.spec;
  spec.format = Format::kFP8;
  spec.n = codes->shape[0];
  spec.k = codes->shape[1];
  NIBBLE_RETURN_IF_ERROR(ExpectDType(name, *scale, {"F32", "F16", "BF16", "F8_E8M0", "U8"}));
  NIBBLE_ASSIGN_OR_RETURN(const ScaleGrid grid,
                          ReadScaleLayout(context, prefix, name, *scale, settings, &spec));
  NIBBLE_RETURN_IF_ERROR(CheckScheme(settings, spec.scale_layout));
  spec.scale_dtype = DType::kF32;
  if (!HoldsExponents(*scale)) {
    NIBBLE_ASSIGN_OR_RETURN(spec.scale_dtype, FloatDType(name, *scale));
  }
  spec.dtype = config.model_dtype.value_or(spec.scale_dtype == DType::kF32 ? DType::kBF16
                                                                           : spec.scale_dtype);
  plan.codes = Borrow(*codes);
  if (!HoldsExponents(*scale) && scale->elements() == grid.rows * grid.cols) {
    plan.scales = Borrow(*scale);
  } else {
    const auto element_bytes = static_cast<int64_t>(DTypeBytes(spec.scale_dtype));
    plan.scales =
        Written(grid.rows * grid.cols * element_bytes,
                [scale, grid](std::span<std::byte> out) { CopyScales(*scale, grid, out); });
  }
  NIBBLE_RETURN_IF_ERROR(AttachInputScale(context, prefix, &plan));
  NIBBLE_RETURN_IF_ERROR(AttachBias(context, prefix, &plan));
  return FinishPlan(prefix, config.method == "compressed-tensors" ? "compressed-tensors" : "fp8",
                    std::move(plan));
}

}  // namespace nibble::checkpoint
