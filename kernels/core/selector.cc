#include "nibble/selector.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <span>

#include "fmt/format.h"
#include "kernels/core/packed_units.h"
#include "kernels/core/roofline.h"

namespace nibble {
namespace {

// Problems of `op` with m up to `m_max`, and for which `only` holds where there is one, run
// `choice`; the first row that fits wins.
struct Entry {
  Op op;
  int64_t m_max;
  Choice choice;
  bool (*only)(const Problem&) = nullptr;
  bool (*on)(const DeviceInfo&) = nullptr;  // devices that it is chosen on; null: all
};

constexpr int64_t kAnyM = std::numeric_limits<int64_t>::max();

// The conditions of kCudaTable are crossovers; what cannot run is told by CudaKernelFits.

// No scale changes along K.
bool WithoutBlocks(const Problem& problem) { return !core::HasBlockScales(problem); }

// Sorted groups may be uneven, which a GEMV's launcher leaves to cuBLASLt.
bool KeepsItsGroups(const Problem& problem) { return !problem.weight.has_group_index; }

// On Hopper the GEMV's sums of FP8 depend on whether more than 8 rows are multiplied at once.
bool KeepsItsGroupsIn4Bits(const Problem& problem) {
  return KeepsItsGroups(problem) && problem.weight.format != Format::kFP8;
}

// Weights whose 9 to 16 rows the GEMV takes faster than wgmma: of few inputs, and of so few outputs
// that tiles of wgmma would be few, or quick to decode. Where pairs of blocks take all outputs of a
// 4-bit weight at once, 128 each on an H200, they are faster; and where tiles of 256 outputs in
// turns (gemm_wgmma_turns.cuh) are a round of most multiprocessors: INT4 of 26624, 28672, 32768
// outputs and 4096 inputs 20.4, 20.9, 21.6 us, by the GEMV 20.2, 21.4, 23.7.
bool IsFastForSixteenRows(const Problem& problem) {
  constexpr int64_t kFewInputs = 4096;
  constexpr int64_t kPairedOutputs = 66 * 128;
  constexpr int64_t kManyOutputs = 16384;
  constexpr int64_t kRoundOutputs = 132 * 256;
  constexpr int64_t kMostOfRound = 108 * 256;
  constexpr int64_t kTurnInputs = 512;
  const WeightSpec& spec = problem.weight;
  const bool by_wgmma = core::CudaKernelFits(problem, "cuda_wgmma", core::kHopper);
  const bool paired = by_wgmma && spec.format != Format::kFP8 && spec.n <= kPairedOutputs;
  const bool turns = by_wgmma && problem.input == DType::kBF16 && spec.k % kTurnInputs == 0 &&
                     spec.n >= kMostOfRound && spec.n <= kRoundOutputs;
  const bool quick = spec.format == Format::kInt4 && core::ScalesPerUnit(spec) == 1 && !turns;
  return spec.k <= kFewInputs && !paired && (quick || spec.n < kManyOutputs);
}

// 4-bit weights that wgmma multiplies 256 rows at a time, and enough outputs for it to gain on
// decoding the weight once for cuBLASLt at any number of rows.
bool IsWide(const Problem& problem) {
  return problem.input == DType::kBF16 && problem.weight.format != Format::kFP8 &&
         problem.weight.n >= 8192;
}

bool NotHopper(const DeviceInfo& device) { return device.compute_capability != core::kHopper; }

// Both decode a tile of weights once for all rows. The GEMV's tile stays in the nearest cache and
// each thread takes few outputs at a time; the GEMM's is larger and is walked by blocks of rows.
constexpr int64_t kCpuGemvMaxM = 7;

constexpr Entry kCpuTable[] = {
    {Op::kMatmul, kCpuGemvMaxM, {"cpu_gemv", 4, 6, 512, 1}},
    {Op::kMatmul, kAnyM, {"cpu_gemm", 128, 24, 512, 1}},
    {Op::kDequantize, kAnyM, {"cpu_dequantize", 1, 0, 0, 1}},
    {Op::kNormQuant, kAnyM, {"cpu_norm_quant", 1, 0, 0, 1}},
    {Op::kSiluMulQuant, kAnyM, {"cpu_silu_mul_quant", 1, 0, 0, 1}},
};

// Weights are the 16-row operand of the tensor cores' mma, activations its 8 columns: one or two
// column tiles are a launch of the GEMV, which reads the weight again for every 16 rows. On Hopper
// wgmma is faster past 8 rows (H200, 16 rows: 4096x4096 6.0 us against 6.8, 4096x14336 13.7 against
// 16.8; NF4 28672x4096 23.9 against 26.3) but for INT4 of many outputs and few inputs (20480x4096
// 16.5 against 17.4, with zero points 17.7 against 18.4), until decoding the weight once for
// cuBLASLt costs little beside it (1024 rows: 28672x4096 311 us against 429, 4096x4096 49 against
// 61; 4096 rows: 28672x4096 1455 against 1515, 57344x8192 5603 against 6188, but 4096x4096 222
// against 212). Elsewhere the table counts only where the peaks are not known. FP8 codes on both
// sides go to cuBLASLt past 32 rows (28672x4096, 32 rows: 33.9 us against 38.7), with scales of
// blocks past 16 (40.0 against 37.6), and to our own kernel where it cannot take their scales. What
// wgmma does not take on Hopper, blocks of FP8 and scales of F32 with 16-bit x, cuda_mma multiplies
// until decoding pays (FP8 blocks 28672x4096: 16 rows 46 us against 63 of the GEMV, 128 rows 146
// against 159 of cuda_gemm, 512 504 against 241). A row whose kernel does not fit the problem
// (CudaKernelFits) is passed over; the last one fits every problem.
constexpr Entry kCudaTable[] = {
    {Op::kMatmul, 8, {"cuda_gemv", 8, 32, 128, 1}},
    {Op::kMatmul, 16, {"cuda_fp8_gemm", 16, 128, 128, 1}},
    {Op::kMatmul, 32, {"cuda_fp8_gemm", 32, 128, 128, 1}, WithoutBlocks},
    {Op::kMatmul, kAnyM, {"cuda_fp8_cublas", 128, 128, 128, 1}},
    {Op::kMatmul, kAnyM, {"cuda_fp8_gemm", 128, 128, 128, 1}},
    {Op::kMatmul, 16, {"cuda_gemv", 16, 16, 128, 1}, IsFastForSixteenRows},
    {Op::kMatmul, 1024, {"cuda_wgmma", 128, 256, 128, 1}},
    {Op::kMatmul, kAnyM, {"cuda_wgmma", 256, 128, 128, 1}, IsWide},
    {Op::kMatmul, 16, {"cuda_gemv", 16, 16, 128, 1}, nullptr, NotHopper},
    {Op::kMatmul, 128, {"cuda_mma", 128, 128, 64, 1}},
    {Op::kMatmul, 1024, {"cuda_mma", 128, 128, 64, 1}, nullptr, NotHopper},
    {Op::kMatmul, 64, {"cuda_gemv", 16, 16, 128, 1}},
    {Op::kMatmul, kAnyM, {"cuda_gemm", 128, 128, 64, 1}},
    {Op::kMatmul, kAnyM, {"cuda_gemm_f32", 64, 64, 32, 1}},
    {Op::kDequantize, kAnyM, {"cuda_dequantize", 16, 0, 128, 1}},
    {Op::kNormQuant, kAnyM, {"cuda_norm_quant", 1, 0, 0, 1}},
    {Op::kSiluMulQuant, kAnyM, {"cuda_silu_mul_quant", 1, 0, 0, 1}},
};

// Bits of a sum depend on how K is divided among warps. On Hopper the two chain kernels divide it
// alike for any number of rows; elsewhere the GEMV does for up to 16 rows of a launch, of FP8 for
// up to 8.
constexpr Entry kCudaInvariantTable[] = {
    {Op::kMatmul, 8, {"cuda_gemv_chain", 8, 16, 128, 1}},
    {Op::kMatmul, 16, {"cuda_gemv_chain", 16, 16, 128, 1}},
    {Op::kMatmul, kAnyM, {"cuda_wgmma_chain", 64, 256, 128, 1}},
    {Op::kMatmul, kAnyM, {"cuda_gemv", 16, 16, 128, 1}, KeepsItsGroupsIn4Bits},
    {Op::kMatmul, kAnyM, {"cuda_gemv", 8, 32, 128, 1}, KeepsItsGroups},
    {Op::kMatmul, kAnyM, {"cuda_gemm_f32", 64, 64, 32, 1}},
};

std::span<const Entry> TableOf(BackendKind kind) {
  if (kind == BackendKind::kCuda) return kCudaTable;
  return kCpuTable;
}

// Whether the entry's kernel can run the problem at all.
bool Fits(const Entry& entry, const Problem& problem, const DeviceInfo& device) {
  return entry.op == problem.op &&
         (device.kind != BackendKind::kCuda || problem.op != Op::kMatmul ||
          core::CudaKernelFits(problem, entry.choice.kernel, device.compute_capability));
}

const Entry& FindInTable(const DeviceInfo& device, const Problem& problem, bool invariant) {
  const std::span<const Entry> table = invariant ? kCudaInvariantTable : TableOf(device.kind);
  const auto found = std::find_if(table.begin(), table.end(), [&](const Entry& entry) {
    return problem.m <= entry.m_max && (entry.only == nullptr || entry.only(problem)) &&
           (entry.on == nullptr || entry.on(device)) && Fits(entry, problem, device);
  });
  return found != table.end() ? *found : table.back();
}

// Calls `visit` with an entry of each kernel that fits the problem: the first for these rows, else
// its last.
template <class Visit>
void ForEachKernel(const DeviceInfo& device, const Problem& problem, Visit visit) {
  const std::span<const Entry> table = TableOf(device.kind);
  const auto is_of = [&](const Entry& entry) {
    return [&](const Entry& other) {
      return other.op == entry.op && other.choice.kernel == entry.choice.kernel;
    };
  };
  for (auto entry = table.begin(); entry != table.end(); ++entry) {
    if (!Fits(*entry, problem, device)) continue;
    const bool seen = std::any_of(table.begin(), entry, [&](const Entry& other) {
      return is_of(*entry)(other) && problem.m <= other.m_max;
    });
    const bool last = std::none_of(entry + 1, table.end(), is_of(*entry));
    if (!seen && (problem.m <= entry->m_max || last)) visit(*entry);
  }
}

struct Found {
  Choice choice;
  int64_t m_max = 0;  // the choice holds up to so many rows
};

// By the least predicted time; of kernels that are alike the first of the table.
Found FindByRoofline(const DeviceInfo& device, const Problem& problem) {
  Problem step = problem;
  step.m = core::RowsOfStep(problem.m);
  Found found{{}, core::EndOfRowsStep(problem.m)};
  double least = std::numeric_limits<double>::infinity();
  ForEachKernel(device, step, [&](const Entry& entry) {
    const double us = core::PredictMatmulMicroseconds(step, entry.choice.kernel, device);
    if (us >= least) return;
    least = us;
    found.choice = entry.choice;
  });
  return found;
}

Found Find(const DeviceInfo& device, const Problem& problem) {
  if (problem.op == Op::kMatmul && SelectsByRoofline(device)) {
    return FindByRoofline(device, problem);
  }
  const bool invariant = device.kind == BackendKind::kCuda && device.batch_invariant &&
                         problem.op == Op::kMatmul;  // other ops are so anyway
  const Entry& entry = FindInTable(device, problem, invariant);
  return {entry.choice, entry.m_max};
}

// Bytes of `factors` multiplied; the largest value where they do not fit 63 bits.
uint64_t SaturatingProduct(std::initializer_list<int64_t> factors) {
  std::optional<int64_t> product = 1;
  for (int64_t factor : factors) {
    if (product) product = CheckedMul(*product, factor);
  }
  return product ? static_cast<uint64_t>(*product) : std::numeric_limits<uint64_t>::max();
}

uint64_t SaturatingSum(std::initializer_list<uint64_t> terms) {
  uint64_t sum = 0;
  for (uint64_t term : terms) {
    sum = term > std::numeric_limits<uint64_t>::max() - sum ? std::numeric_limits<uint64_t>::max()
                                                            : sum + term;
  }
  return sum;
}

int64_t Bytes(DType dtype) { return static_cast<int64_t>(DTypeBytes(dtype)); }

// Bytes of the canonical weight, 0 for a spec that has none.
uint64_t WeightBytes(const WeightSpec& spec) {
  const StatusOr<WeightGeometry> geometry = GeometryOf(spec);
  return geometry.ok() ? static_cast<uint64_t>(geometry->total_bytes) : 0;
}

// Scales that a quantizer writes; a static scale is given, not written.
uint64_t ScaleBytes(QuantMode mode, int64_t m, int64_t cols) {
  return mode == QuantMode::kStatic ? 0
                                    : SaturatingProduct({m, ScalesPerRow(mode, cols), int64_t{4}});
}

Traffic MatmulTraffic(const Problem& problem) {
  const WeightSpec& spec = problem.weight;
  const uint64_t x = SaturatingProduct({problem.m, spec.k, Bytes(problem.input)});
  const uint64_t x_scales =
      problem.input == DType::kF8E4M3 ? ScaleBytes(problem.quant, problem.m, spec.k) : 0;
  return {SaturatingSum({WeightBytes(spec), x, x_scales}),
          SaturatingProduct({problem.m, spec.n, Bytes(problem.output)})};
}

Traffic DequantizeTraffic(const Problem& problem) {
  WeightSpec rows = problem.weight;
  rows.n = problem.m;
  rows.has_bias = false;
  return {WeightBytes(rows), SaturatingProduct({problem.m, rows.k, Bytes(problem.output)})};
}

Traffic RowOpTraffic(const Problem& problem) {
  const uint64_t row_of_d = SaturatingProduct({problem.m, problem.d, Bytes(problem.input)});
  const uint64_t y = SaturatingProduct({problem.m, problem.d, Bytes(problem.output)});
  const uint64_t scales = ScaleBytes(problem.quant, problem.m, problem.d);
  if (problem.op == Op::kSiluMulQuant) {
    return {SaturatingSum({row_of_d, row_of_d}), SaturatingSum({y, scales})};
  }
  const uint64_t gamma = SaturatingProduct({problem.d, Bytes(problem.input)});
  const uint64_t residual = problem.has_residual ? row_of_d : 0;
  return {SaturatingSum({row_of_d, residual, gamma}), SaturatingSum({y, scales, residual})};
}

std::string TileSize(int size, std::string_view whole) {
  return size == 0 ? std::string(whole) : fmt::format("{}", size);
}

}  // namespace

bool SelectsByRoofline(const DeviceInfo& device) {
  return device.kind == BackendKind::kCuda && !device.batch_invariant &&
         device.peak_bandwidth_bytes_per_second > 0.0 &&
         device.peak_tensor_flops_per_second > 0.0 && !core::IsMeasuredChip(device);
}

Choice Select(const Problem& problem, const DeviceInfo& device) {
  return Find(device, problem).choice;
}

std::vector<Choice> MatmulCandidates(const Problem& problem, const DeviceInfo& device) {
  if (problem.op != Op::kMatmul) return {};
  std::vector<Choice> candidates = {Select(problem, device)};
  if (device.batch_invariant) return candidates;
  ForEachKernel(device, problem, [&](const Entry& entry) {
    if (entry.choice.kernel != candidates.front().kernel) candidates.push_back(entry.choice);
  });
  return candidates;
}

double PredictMicroseconds(const Problem& problem, std::string_view kernel,
                           const DeviceInfo& device) {
  if (device.kind == BackendKind::kCuda && problem.op == Op::kMatmul) {
    const double us = core::PredictMatmulMicroseconds(problem, kernel, device);
    if (us > 0.0) return us;
  }
  const double bandwidth = device.peak_bandwidth_bytes_per_second;
  if (!(bandwidth > 0.0)) return 0.0;
  const Traffic traffic = TrafficOf(problem);
  return (static_cast<double>(traffic.read_bytes) + static_cast<double>(traffic.written_bytes)) /
         bandwidth * 1e6;
}

std::vector<std::string_view> KernelNames(BackendKind kind, Op op) {
  std::vector<std::string_view> names;
  const auto add = [&](std::span<const Entry> table) {
    for (const Entry& entry : table) {
      if (entry.op == op && std::ranges::find(names, entry.choice.kernel) == names.end()) {
        names.push_back(entry.choice.kernel);
      }
    }
  };
  add(TableOf(kind));
  if (kind == BackendKind::kCuda) add(kCudaInvariantTable);
  return names;
}

std::string ToString(const Choice& choice) {
  return fmt::format("{} tile {}x{}x{} split {}", choice.kernel, choice.tile_m,
                     TileSize(choice.tile_n, "N"), TileSize(choice.tile_k, "K"), choice.split_k);
}

std::vector<ChoiceRange> ExplainMatmul(const WeightSpec& weight, DType input, DType output,
                                       QuantMode activation, const DeviceInfo& device,
                                       int64_t max_m) {
  Problem problem;
  problem.weight = weight;
  problem.input = input;
  problem.output = output;
  problem.quant = activation;
  std::vector<ChoiceRange> ranges;
  int64_t m_end = 0;
  while (m_end < max_m) {
    problem.m = m_end + 1;
    const auto [choice, m_max] = Find(device, problem);
    m_end = std::min(max_m, m_max);
    // Fewer rows than the entry's may fit its kernel.
    Problem last = problem;
    for (last.m = m_end; last.m > problem.m && Select(last, device) != choice; --last.m) {
    }
    m_end = last.m;
    if (!ranges.empty() && ranges.back().choice == choice) {
      ranges.back().m_end = m_end;
    } else {
      ranges.push_back({problem.m, m_end, choice});
    }
  }
  return ranges;
}

Traffic TrafficOf(const Problem& problem) {
  if (problem.m <= 0) return {};
  switch (problem.op) {
    case Op::kMatmul:
      return MatmulTraffic(problem);
    case Op::kDequantize:
      return DequantizeTraffic(problem);
    case Op::kNormQuant:
    case Op::kSiluMulQuant:
      return RowOpTraffic(problem);
  }
  return {};
}

}  // namespace nibble
