#include "kernels/core/packed_units.h"

namespace nibble::core {
namespace {

constexpr int64_t kUnitInputs = 128;

}  // namespace

int ScalesPerUnit(const WeightSpec& spec) {
  switch (spec.format) {
    case Format::kDense:
      return 0;
    case Format::kNF4:
    case Format::kFP4:
      // Blocks run over the flat index: units see whole blocks only where rows are whole units.
      if (spec.k % kUnitInputs != 0 || spec.k % spec.block_size != 0) return 0;
      if (spec.block_size == 64) return 2;
      return spec.block_size >= kUnitInputs ? 1 : 0;
    case Format::kInt4:
      // Act-order weights are stored sorted by group.
      if (spec.group_size >= spec.k || spec.group_size % kUnitInputs == 0) return 1;
      if (spec.group_size == 64) return 2;
      return spec.group_size == 32 ? 4 : 0;
    case Format::kFP8:
      if (spec.scale_layout != ScaleLayout::kBlock) return 1;
      return spec.scale_block_k >= spec.k || spec.scale_block_k % kUnitInputs == 0 ? 1 : 0;
  }
  return 0;
}

bool CudaKernelFits(const Problem& problem, std::string_view kernel) {
  const WeightSpec& spec = problem.weight;
  // The tensor cores take 16-bit activations; quantized ones are multiplied in binary32.
  const bool sixteen_bits = problem.input == DType::kBF16 || problem.input == DType::kF16;
  if (kernel == "cuda_gemm_f32") return true;
  if (!sixteen_bits || problem.quant != QuantMode::kNone) return false;
  if (kernel == "cuda_gemv") return ScalesPerUnit(spec) > 0;
  if (kernel == "cuda_wgmma") return ScalesPerUnit(spec) > 0 && spec.format != Format::kFP8;
  // Dense weights are never rounded: both sides are of one type.
  if (kernel == "cuda_gemm") return spec.format != Format::kDense || spec.dtype == problem.input;
  return false;
}

}  // namespace nibble::core
