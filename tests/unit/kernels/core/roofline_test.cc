// Predicted times and the choices made by them: on chips that were not measured, and against the
// measurements of the one that was.
#include "kernels/core/roofline.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "kernels/core/packed_units.h"
#include "nibble/selector.h"
#include "nlohmann/json.hpp"

namespace nibble {
namespace {

DeviceInfo Chip(int compute_capability, int cores, double bandwidth_tbs, double tensor_tflops) {
  DeviceInfo device;
  device.kind = BackendKind::kCuda;
  device.compute_capability = compute_capability;
  device.cores = cores;
  device.peak_bandwidth_bytes_per_second = bandwidth_tbs * 1e12;
  device.peak_tensor_flops_per_second = tensor_tflops * 1e12;
  return device;
}
DeviceInfo A100() { return Chip(80, 108, 2.0, 312); }
DeviceInfo L40S() { return Chip(89, 142, 0.86, 362); }
DeviceInfo Rtx4090() { return Chip(89, 128, 1.0, 165); }
DeviceInfo H20() { return Chip(90, 78, 4.0, 148); }
DeviceInfo H200() { return Chip(90, 132, 4.54, 790); }

WeightSpec Spec(Format format, int64_t n, int64_t k) {
  WeightSpec spec;
  spec.format = format;
  spec.n = n;
  spec.k = k;
  spec.scale_dtype = format == Format::kInt4 ? DType::kBF16 : DType::kF32;
  spec.nested = format == Format::kNF4;
  if (format == Format::kFP8) spec.scale_layout = ScaleLayout::kChannel;
  return spec;
}

// "cuda_gemv 8, cuda_mma 512, cuda_gemm".
std::string Crossovers(const WeightSpec& spec, const DeviceInfo& device,
                       QuantMode activation = QuantMode::kNone) {
  std::string text;
  constexpr int64_t kMost = 100000;
  for (const ChoiceRange& range :
       ExplainMatmul(spec, DType::kBF16, DType::kBF16, activation, device, kMost)) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", range.choice.kernel);
    if (range.m_end < kMost) text += fmt::format(" {}", range.m_end);
  }
  return text;
}

constexpr std::string_view kKernels[] = {"cuda_gemv", "cuda_mma", "cuda_wgmma", "cuda_gemm"};

Problem Matmul(const WeightSpec& weight, int64_t m) {
  Problem problem;
  problem.weight = weight;
  problem.m = m;
  return problem;
}

TEST(Roofline, ChoosesForChipsThatWereNotMeasured) {
  const WeightSpec int4 = Spec(Format::kInt4, 28672, 4096);
  const WeightSpec fp8 = Spec(Format::kFP8, 4096, 14336);
  // Much bandwidth for its arithmetic: few rows are enough for decoding once to be cheaper.
  EXPECT_EQ(Crossovers(int4, A100()), "cuda_gemv 8, cuda_mma 256, cuda_gemm");
  EXPECT_EQ(Crossovers(fp8, A100()), "cuda_gemv 8, cuda_mma 256, cuda_gemm");
  // Little: reading weights again, or decoded, costs most.
  EXPECT_EQ(Crossovers(int4, L40S()), "cuda_gemv 8, cuda_gemv 16, cuda_mma 1024, cuda_gemm");
  EXPECT_EQ(Crossovers(fp8, L40S()), "cuda_gemv 8, cuda_gemv 16, cuda_mma 896, cuda_gemm");
  EXPECT_EQ(Crossovers(int4, Rtx4090()), "cuda_gemv 8, cuda_gemv 16, cuda_mma 512, cuda_gemm");
  EXPECT_EQ(Crossovers(int4, H20()), "cuda_gemv 8, cuda_gemv 16, cuda_wgmma 1024, cuda_wgmma");
  WeightSpec dense = Spec(Format::kDense, 4096, 4096);
  dense.dtype = DType::kBF16;
  EXPECT_EQ(Crossovers(dense, A100()), "cuda_gemm");
  DeviceInfo invariant = A100();
  invariant.batch_invariant = true;
  EXPECT_EQ(Crossovers(int4, invariant), "cuda_gemv");
}

TEST(Roofline, LeavesTheMeasuredChipToItsTable) {
  EXPECT_FALSE(SelectsByRoofline(H200()));
  DeviceInfo busy = Chip(90, 132, 4.54, 1.7);
  EXPECT_TRUE(SelectsByRoofline(busy));
  busy.name = "NVIDIA H200";
  EXPECT_FALSE(SelectsByRoofline(busy));
  DeviceInfo part = Chip(90, 16, 0.56, 95);
  part.name = "NVIDIA H200 MIG 1g.18gb";
  EXPECT_TRUE(SelectsByRoofline(part));
  EXPECT_FALSE(SelectsByRoofline(Chip(90, 132, 4.0, 700)));
  EXPECT_FALSE(SelectsByRoofline(Chip(80, 108, 0.0, 312)));
  EXPECT_FALSE(SelectsByRoofline(Chip(80, 108, 2.0, 0.0)));
  EXPECT_TRUE(SelectsByRoofline(H20()));
  EXPECT_TRUE(SelectsByRoofline(A100()));
  DeviceInfo cpu;
  cpu.peak_bandwidth_bytes_per_second = 1e11;
  EXPECT_FALSE(SelectsByRoofline(cpu));
  for (const Format format : {Format::kInt4, Format::kNF4, Format::kFP8}) {
    const WeightSpec spec = Spec(format, 28672, 4096);
    EXPECT_EQ(Crossovers(spec, H200()), Crossovers(spec, Chip(90, 132, 0.0, 0.0)));
  }
}

TEST(Roofline, RangesAgreeWithSelect) {
  const WeightSpec spec = Spec(Format::kNF4, 4096, 4096);
  int64_t next = 1;
  for (const ChoiceRange& range :
       ExplainMatmul(spec, DType::kBF16, DType::kBF16, QuantMode::kNone, L40S(), 5000)) {
    EXPECT_EQ(range.m_begin, next);
    for (int64_t m = range.m_begin; m <= range.m_end; ++m) {
      ASSERT_EQ(Select(Matmul(spec, m), L40S()), range.choice) << m;
    }
    next = range.m_end + 1;
  }
  EXPECT_EQ(next, 5001);
  // The chosen kernel is the first candidate, and the fastest of them.
  for (const int64_t m : {8, 16, 64, 384, 4096}) {
    const std::vector<Choice> candidates = MatmulCandidates(Matmul(spec, m), L40S());
    EXPECT_EQ(candidates.front(), Select(Matmul(spec, m), L40S()));
    for (const Choice& choice : candidates) {
      EXPECT_GE(PredictMicroseconds(Matmul(spec, m), choice.kernel, L40S()),
                PredictMicroseconds(Matmul(spec, m), candidates.front().kernel, L40S()));
    }
  }
}

TEST(Roofline, IsNoFasterThanThePeaksAndGrowsWithTheRows) {
  for (const DeviceInfo& chip : {A100(), L40S(), Rtx4090(), H20(), H200()}) {
    for (const Format format : {Format::kInt4, Format::kNF4, Format::kFP8}) {
      const WeightSpec spec = Spec(format, 4096, 4096);
      for (const std::string_view kernel : kKernels) {
        double before = 0.0;
        for (const int64_t m : {1, 8, 9, 16, 17, 64, 65, 512, 4096, 65536}) {
          const double us = PredictMicroseconds(Matmul(spec, m), kernel, chip);
          const double flops = 2.0 * static_cast<double>(m) * 4096 * 4096;
          const double bytes = 4096.0 * 4096 / 2;
          EXPECT_GT(us, bytes / chip.peak_bandwidth_bytes_per_second * 1e6);
          EXPECT_GT(us, flops / chip.peak_tensor_flops_per_second * 1e6);
          EXPECT_GE(us, before) << kernel << " " << m;
          before = us;
        }
      }
    }
  }
  EXPECT_EQ(PredictMicroseconds(Matmul(Spec(Format::kInt4, 64, 128), 0), "cuda_gemv", A100()), 0.0);
}

TEST(Roofline, StreamsWeightsWhereABlockHasTheSharedMemory) {
  for (const int capability : {90, 100, 103, 110}) {
    EXPECT_TRUE(core::StreamsWeights(capability)) << capability;
  }
  for (const int capability : {75, 80, 86, 89, 120, 121}) {
    EXPECT_FALSE(core::StreamsWeights(capability)) << capability;
  }
}

// The constants are of that chip: predictions are near what was measured there, kernel by kernel.
TEST(Roofline, IsNearTheMeasurementsOfTheH200) {
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/bench/results/h200.json");
  const auto report = nlohmann::json::parse(file);
  std::map<std::string, std::vector<double>> ratios;
  for (const auto& row : report["rows"]) {
    if (row["op"] != "matmul") continue;
    const std::string format = row["format"];
    const std::string activations = row["activations"];
    Problem problem;
    problem.m = row["m"];
    problem.weight = Spec(format == "int4"  ? Format::kInt4
                          : format == "nf4" ? Format::kNF4
                                            : Format::kFP8,
                          row["n"], row["k"]);
    problem.weight.has_zero_points = row["variant"] == "zp";
    if (row["variant"] == "block") problem.weight.scale_layout = ScaleLayout::kBlock;
    if (activations.starts_with("codes")) problem.input = DType::kF8E4M3;
    if (activations.ends_with("per_token")) problem.quant = QuantMode::kPerToken;
    if (activations.ends_with("per_group")) problem.quant = QuantMode::kPerGroup;
    const std::string kernel = row["kernel"];
    ratios[kernel].push_back(PredictMicroseconds(problem, kernel, H200()) / double{row["us"]});
  }
  for (auto& [kernel, of_kernel] : ratios) {
    std::ranges::sort(of_kernel);
    const double median = of_kernel[of_kernel.size() / 2];
    const std::string range = fmt::format(
        "{}: {} cells, predicted over measured {:.2f} at least, {:.2f} in the middle, "
        "{:.2f} at most",
        kernel, of_kernel.size(), of_kernel.front(), median, of_kernel.back());
    RecordProperty(kernel, range);
    EXPECT_GT(median, 0.8) << range;
    EXPECT_LT(median, 1.25) << range;
    EXPECT_GT(of_kernel.front(), 0.4) << range;
    EXPECT_LT(of_kernel.back(), 2.5) << range;
  }
}

}  // namespace
}  // namespace nibble
