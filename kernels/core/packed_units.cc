#include "kernels/core/packed_units.h"

#include <algorithm>

#include "kernels/core/chain_room.h"

namespace nibble::core {
namespace {

constexpr int64_t kUnitInputs = 128;
constexpr int64_t kMostChainRows = 8;  // columns of an mma
constexpr int kAmpere = 80;            // asynchronous copies, and mma of BF16

// Codes on both sides.
bool Fp8CodesFit(const Problem& problem, int compute_capability) {
  return compute_capability == kHopper && problem.weight.format == Format::kFP8 &&
         problem.quant != QuantMode::kNone && ScalesPerUnit(problem.weight) == 1;
}

// cuBLASLt takes one scale a row and output, or blocks of 128 x 128.
bool Fp8CublasFits(const Problem& problem) {
  constexpr int64_t kOutputsAlign = 16;
  const WeightSpec& spec = problem.weight;
  if (spec.n % kOutputsAlign != 0) return false;
  if (spec.scale_layout != ScaleLayout::kBlock) return problem.quant != QuantMode::kPerGroup;
  return spec.scale_block_n == kQuantGroup && spec.scale_block_k == kQuantGroup &&
         spec.k > kQuantGroup;
}

// A block holds x, of several chains up to 16 rows, or the two of a cluster half of K each.
bool Fp8ChainRowsFit(const WeightSpec& spec, int64_t m, int64_t units) {
  const int chains = ChainsOf(spec).count;
  if (m > (chains > 1 ? 2 * kMostChainRows : kMostChainRows)) return false;
  const auto bytes = [&](int64_t of_block) { return m * of_block * kUnitInputs * 2; };
  return bytes(units) <= kChainRoomFp8 ||
         (m <= kMostChainRows && chains % 2 == 0 && bytes((units + 1) / 2) <= kChainRoomOfHalves);
}

bool ChainRowsFit(const Problem& problem) {
  const int64_t units = (problem.weight.k + kUnitInputs - 1) / kUnitInputs;
  if (problem.weight.format == Format::kFP8) {
    return Fp8ChainRowsFit(problem.weight, problem.m, units);
  }
  if (problem.m > kMostChainRows) return false;
  if (ChainsOf(problem.weight).of_half > 0) return true;  // x comes in parts
  const int64_t room = HasTable(problem.weight.format) ? kChainRoomBesideTable : kChainRoom;
  return problem.m * (units * kUnitInputs * 2 + kChainRowSkew) <= room;
}

// Its stages are filled by tensor maps: each unit's scales follow the last unit's.
bool WgmmaFits(const WeightSpec& spec) {
  if (ScalesPerUnit(spec) == 0) return false;
  if (spec.format == Format::kFP8) return spec.scale_layout != ScaleLayout::kBlock;
  if (spec.format != Format::kInt4) return true;
  // Sorted groups of more than a unit are not spread over their units.
  return spec.scale_dtype != DType::kF32 &&
         !(spec.has_group_index && spec.group_size > kUnitInputs);
}

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

Chains ChainsOf(const WeightSpec& spec) {
  // Those of an H200: bits are the same on every device.
  constexpr int64_t kMultiprocessors = 132;
  constexpr int64_t kMostOutputs = 256;  // of a tile
  if (spec.format != Format::kFP8) {
    // Past these gemv_stream.cuh, which counts pieces of 16 bytes of codes, could count past 32
    // bits.
    constexpr int64_t kMostInputs = int64_t{1} << 22;
    if (spec.k > kMostInputs) return {};
    // The fewest outputs a tile whose pairs of blocks all run at once, as WgmmaPlan divides.
    for (int64_t outputs = 64; outputs <= kMostOutputs; outputs *= 2) {
      if ((spec.n + outputs - 1) / outputs * 2 > kMultiprocessors) continue;
      const auto of_half = static_cast<int>(kMostOutputs / outputs);
      return {2 * of_half, of_half};
    }
    return {};
  }
  constexpr int64_t kLeastUnits = 4;  // of a chain
  constexpr int64_t kMost = 8;
  const int64_t tiles = (spec.n + kMostOutputs - 1) / kMostOutputs;
  const int64_t units = (spec.k + kUnitInputs - 1) / kUnitInputs;
  const int64_t count = std::min({kMost, kMultiprocessors / tiles, units / kLeastUnits});
  return {static_cast<int>(std::max<int64_t>(count, 1)), 0};
}

bool HasBlockScales(const Problem& problem) {
  const WeightSpec& spec = problem.weight;
  return problem.quant == QuantMode::kPerGroup ||
         (spec.format == Format::kFP8 && spec.scale_layout == ScaleLayout::kBlock &&
          spec.scale_block_k < spec.k);
}

bool StreamsWeights(int compute_capability) {
  constexpr int kLittleSharedMemory = 12;  // the major version
  return compute_capability >= kHopper && compute_capability / 10 != kLittleSharedMemory;
}

bool HasChainKernels(const WeightSpec& spec, int compute_capability) {
  // Sorted groups may be uneven, which wgmma's launcher leaves to cuBLASLt.
  return compute_capability == kHopper && WgmmaFits(spec) && !spec.has_group_index;
}

bool CudaKernelFits(const Problem& problem, std::string_view kernel, int compute_capability) {
  const WeightSpec& spec = problem.weight;
  if (kernel == "cuda_fp8_gemm") return Fp8CodesFit(problem, compute_capability);
  if (kernel == "cuda_fp8_cublas") {
    return Fp8CodesFit(problem, compute_capability) && Fp8CublasFits(problem);
  }
  if (kernel == "cuda_gemv" && problem.quant != QuantMode::kNone) {
    // Codes as BF16 numbers, one scale a row. On Hopper blocks have a faster kernel.
    return spec.format == Format::kFP8 && problem.quant != QuantMode::kPerGroup &&
           ScalesPerUnit(spec) == 1 &&
           !(HasBlockScales(problem) && Fp8CodesFit(problem, compute_capability));
  }
  // The tensor cores take 16-bit activations; quantized ones are multiplied in binary32.
  const bool sixteen_bits = problem.input == DType::kBF16 || problem.input == DType::kF16;
  if (kernel == "cuda_gemm_f32") return true;
  if (!sixteen_bits || problem.quant != QuantMode::kNone) return false;
  if (kernel == "cuda_gemv") return ScalesPerUnit(spec) > 0;
  if (kernel == "cuda_mma") return compute_capability >= kAmpere && ScalesPerUnit(spec) > 0;
  const bool hopper = compute_capability == kHopper;
  if (kernel == "cuda_wgmma") return hopper && WgmmaFits(spec);
  if (kernel == "cuda_gemv_chain" || kernel == "cuda_wgmma_chain") {
    return HasChainKernels(spec, compute_capability) &&
           (kernel == "cuda_wgmma_chain" || ChainRowsFit(problem));
  }
  // Dense weights are never rounded: both sides are of one type.
  if (kernel == "cuda_gemm") return spec.format != Format::kDense || spec.dtype == problem.input;
  return false;
}

}  // namespace nibble::core
