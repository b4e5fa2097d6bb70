#include "nibble/ops.h"

#include <cmath>

#include "fmt/format.h"
#include "kernels/core/validate_view.h"

namespace nibble {
namespace {

using core::CheckAbsent;
using core::CheckDisjoint;
using core::CheckDType;
using core::CheckFloatDType;
using core::CheckView;
using core::Input;
using core::NamedView;
using core::Result;

bool IsQuantMode(QuantMode mode) {
  return mode == QuantMode::kNone || mode == QuantMode::kPerToken || mode == QuantMode::kPerGroup ||
         mode == QuantMode::kStatic;
}

Status CheckMode(std::string_view field, QuantMode mode) {
  if (IsQuantMode(mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: expected none, per_token, per_group or static; received {}", field,
                  static_cast<int>(mode)));
}

Status CheckStaticScale(std::string_view field, QuantMode mode, float scale) {
  if (mode != QuantMode::kStatic || (std::isfinite(scale) && scale > 0.0f)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: expected a finite value above 0; received {}", field, scale));
}

Status CheckRowsAndColumns(const NamedView& x) {
  if (x.view.rows >= 0 && x.view.cols >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: expected at least 0 rows and 1 column; received [{}, {}]", x.name,
                  x.view.rows, x.view.cols));
}

// What x and the activation mode ask of a matmul's weight and of x_scales.
Status CheckActivations(const MatmulArgs& args, const WeightSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(CheckMode("activation", args.activation));
  const bool quantized = args.x.dtype == DType::kF8E4M3;
  if (!quantized && !IsFloat16Or32(args.x.dtype)) {
    return absl::InvalidArgumentError(fmt::format(
        "x.dtype: expected F32, F16, BF16 or F8_E4M3; received {}", DTypeName(args.x.dtype)));
  }
  if ((quantized || args.activation != QuantMode::kNone) && spec.format != Format::kFP8) {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected {} for a weight of format {}; received {}",
                    quantized ? "x.dtype" : "activation", quantized ? "F32, F16 or BF16" : "none",
                    FormatName(spec.format),
                    quantized ? DTypeName(args.x.dtype) : QuantModeName(args.activation)));
  }
  const NamedView x_scales = Input("x_scales", args.x_scales);
  if (!quantized) {
    NIBBLE_RETURN_IF_ERROR(CheckStaticScale("static_scale", args.activation, args.static_scale));
    return CheckAbsent(x_scales, "unless x is F8_E4M3");
  }
  if (args.activation != QuantMode::kPerToken && args.activation != QuantMode::kPerGroup) {
    return absl::InvalidArgumentError(
        fmt::format("activation: expected per_token or per_group for an F8_E4M3 x; received {}",
                    QuantModeName(args.activation)));
  }
  if (args.x.rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(CheckDType(x_scales, DType::kF32));
  return CheckView(x_scales, args.x.rows, ScalesPerRow(args.activation, spec.k));
}

// y and scales of an op that quantizes its output [rows, cols] computed in `dtype`.
Status CheckQuantizedOutput(const OutputQuant& quant, DType dtype, int64_t rows, int64_t cols,
                            const NamedView& y, const NamedView& scales) {
  NIBBLE_RETURN_IF_ERROR(CheckMode("quant.mode", quant.mode));
  NIBBLE_RETURN_IF_ERROR(CheckStaticScale("quant.static_scale", quant.mode, quant.static_scale));
  NIBBLE_RETURN_IF_ERROR(CheckView(y, rows, cols));
  if (quant.mode == QuantMode::kNone) {
    NIBBLE_RETURN_IF_ERROR(CheckDType(y, dtype));
    return CheckAbsent(scales, "without quantization");
  }
  if (y.view.dtype != DType::kF8E4M3 && y.view.dtype != DType::kI8) {
    return absl::InvalidArgumentError(
        fmt::format("y.dtype: expected F8_E4M3 or I8 with quantization {}; received {}",
                    QuantModeName(quant.mode), DTypeName(y.view.dtype)));
  }
  if (quant.mode == QuantMode::kStatic) return CheckAbsent(scales, "with a static scale");
  if (rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(CheckDType(scales, DType::kF32));
  return CheckView(scales, rows, ScalesPerRow(quant.mode, cols));
}

bool SameElements(const ConstMatrixView& a, const ConstMatrixView& b) {
  return a.data == b.data && (a.row_stride == b.row_stride || a.rows <= 1);
}

}  // namespace

std::string_view OpName(Op op) {
  switch (op) {
    case Op::kMatmul:
      return "matmul";
    case Op::kDequantize:
      return "dequantize";
    case Op::kNormQuant:
      return "norm_quant";
    case Op::kSiluMulQuant:
      return "silu_mul_quant";
  }
  return "?";
}

std::string_view QuantModeName(QuantMode mode) {
  switch (mode) {
    case QuantMode::kNone:
      return "none";
    case QuantMode::kPerToken:
      return "per_token";
    case QuantMode::kPerGroup:
      return "per_group";
    case QuantMode::kStatic:
      return "static";
  }
  return "?";
}

int64_t ScalesPerRow(QuantMode mode, int64_t cols) {
  switch (mode) {
    case QuantMode::kNone:
      return 0;
    case QuantMode::kPerToken:
    case QuantMode::kStatic:
      return 1;
    case QuantMode::kPerGroup:
      return CeilDiv(cols, kQuantGroup);
  }
  return 0;
}

Status ValidateMatmul(const MatmulArgs& args) {
  if (args.weight == nullptr) {
    return absl::InvalidArgumentError("weight: expected a resident weight; received null");
  }
  const WeightSpec& spec = args.weight->spec();
  const NamedView x = Input("x", args.x);
  const NamedView y = Result("y", args.y);
  NIBBLE_RETURN_IF_ERROR(CheckActivations(args, spec));
  NIBBLE_RETURN_IF_ERROR(CheckRowsAndColumns(x));
  NIBBLE_RETURN_IF_ERROR(CheckView(x, args.x.rows, spec.k));
  NIBBLE_RETURN_IF_ERROR(CheckFloatDType(y));
  NIBBLE_RETURN_IF_ERROR(CheckView(y, args.x.rows, spec.n));
  if (args.x.rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(CheckDisjoint(y, x));
  return CheckDisjoint(y, Input("x_scales", args.x_scales));
}

Status ValidateDequantize(const DequantizeArgs& args) {
  if (args.weight == nullptr) {
    return absl::InvalidArgumentError("weight: expected a resident weight; received null");
  }
  const WeightSpec& spec = args.weight->spec();
  const NamedView out = Result("out", args.out);
  if (args.row_begin < 0 || args.row_begin > spec.n) {
    return absl::InvalidArgumentError(
        fmt::format("row_begin: expected 0 to {}; received {}", spec.n, args.row_begin));
  }
  if (args.out.rows < 0 || args.out.rows > spec.n - args.row_begin) {
    return absl::InvalidArgumentError(
        fmt::format("out.rows: expected at most {} from row_begin {}; received {}",
                    spec.n - args.row_begin, args.row_begin, args.out.rows));
  }
  NIBBLE_RETURN_IF_ERROR(CheckFloatDType(out));
  return CheckView(out, args.out.rows, spec.k);
}

Status ValidateNormQuant(const NormQuantArgs& args) {
  const int64_t rows = args.x.rows;
  const int64_t cols = args.x.cols;
  const NamedView x = Input("x", args.x);
  const NamedView residual = Input("residual", args.residual);
  const NamedView gamma = Input("gamma", args.gamma);
  const NamedView y = Result("y", args.y);
  const NamedView scales = Result("scales", args.scales);
  const NamedView residual_out = Result("residual_out", args.residual_out);

  NIBBLE_RETURN_IF_ERROR(CheckFloatDType(x));
  NIBBLE_RETURN_IF_ERROR(CheckRowsAndColumns(x));
  NIBBLE_RETURN_IF_ERROR(CheckView(x, rows, cols));
  if (!(std::isfinite(args.epsilon) && args.epsilon >= 0.0f)) {
    return absl::InvalidArgumentError(
        fmt::format("epsilon: expected a finite value of at least 0; received {}", args.epsilon));
  }
  NIBBLE_RETURN_IF_ERROR(CheckFloatDType(gamma));
  NIBBLE_RETURN_IF_ERROR(CheckView(gamma, 1, cols));
  NIBBLE_RETURN_IF_ERROR(CheckQuantizedOutput(args.quant, args.x.dtype, rows, cols, y, scales));
  if (rows == 0) return absl::OkStatus();

  if (args.residual.empty()) {
    NIBBLE_RETURN_IF_ERROR(CheckAbsent(residual_out, "without a residual"));
  } else {
    NIBBLE_RETURN_IF_ERROR(CheckDType(residual, args.x.dtype));
    NIBBLE_RETURN_IF_ERROR(CheckView(residual, rows, cols));
    NIBBLE_RETURN_IF_ERROR(CheckDType(residual_out, args.x.dtype));
    NIBBLE_RETURN_IF_ERROR(CheckView(residual_out, rows, cols));
  }
  for (const NamedView& result : {y, scales, residual_out}) {
    for (const NamedView& input : {x, residual, gamma}) {
      const bool in_place = result.name == "residual_out" && input.name == "residual" &&
                            SameElements(result.view, input.view);
      if (!in_place) NIBBLE_RETURN_IF_ERROR(CheckDisjoint(result, input));
    }
  }
  NIBBLE_RETURN_IF_ERROR(CheckDisjoint(y, scales));
  NIBBLE_RETURN_IF_ERROR(CheckDisjoint(y, residual_out));
  return CheckDisjoint(scales, residual_out);
}

Status ValidateSiluMulQuant(const SiluMulQuantArgs& args) {
  const NamedView x = Input("x", args.x);
  const NamedView y = Result("y", args.y);
  const NamedView scales = Result("scales", args.scales);
  NIBBLE_RETURN_IF_ERROR(CheckFloatDType(x));
  NIBBLE_RETURN_IF_ERROR(CheckRowsAndColumns(x));
  if (args.x.cols % 2 != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "x: expected an even number of columns, [gate | up]; received {}", args.x.cols));
  }
  NIBBLE_RETURN_IF_ERROR(CheckView(x, args.x.rows, args.x.cols));
  NIBBLE_RETURN_IF_ERROR(
      CheckQuantizedOutput(args.quant, args.x.dtype, args.x.rows, args.x.cols / 2, y, scales));
  if (args.x.rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(CheckDisjoint(y, x));
  NIBBLE_RETURN_IF_ERROR(CheckDisjoint(scales, x));
  return CheckDisjoint(y, scales);
}

}  // namespace nibble
