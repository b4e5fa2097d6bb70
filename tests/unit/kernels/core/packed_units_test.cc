#include "kernels/core/packed_units.h"

#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/unit/kernels/core/problems.h"

namespace nibble::core {
namespace {

Chains ChainsFor(Format format, int64_t n, int64_t k) { return ChainsOf(Spec(format, n, k)); }

TEST(ChainsOf, FourBitsInHalvesWhilePairsOfBlocksTakeAllOutputsAtOnce) {
  constexpr struct {
    int64_t n;
    int of_half;
  } kCases[] = {{1, 4},        {66 * 64, 4},      {66 * 64 + 1, 2},
                {66 * 128, 2}, {66 * 128 + 1, 1}, {66 * 256, 1}};
  for (const auto& [n, of_half] : kCases) {
    const Chains chains = ChainsFor(Format::kInt4, n, 4096);
    EXPECT_EQ(chains.of_half, of_half) << n;
    EXPECT_EQ(chains.count, 2 * of_half) << n;
  }
  EXPECT_EQ(ChainsFor(Format::kNF4, 66 * 256 + 1, 4096).count, 1);
  EXPECT_EQ(ChainsFor(Format::kNF4, 66 * 256 + 1, 4096).of_half, 0);
}

TEST(ChainsOf, FourBitsInOneWhereUnitsAreTooManyToCount) {
  constexpr int64_t kMostInputs = int64_t{1} << 22;
  EXPECT_EQ(ChainsFor(Format::kInt4, 4096, kMostInputs).of_half, 4);
  EXPECT_EQ(ChainsFor(Format::kInt4, 4096, kMostInputs + 128).count, 1);
  EXPECT_EQ(ChainsFor(Format::kInt4, 4096, kMostInputs + 128).of_half, 0);
}

TEST(ChainsOf, Fp8InEqualPartsOfFourUnitsAtLeast) {
  constexpr struct {
    int64_t n, k;
    int count;
  } kCases[] = {{4096, 4096, 8}, {6144, 4096, 5}, {28672, 4096, 1},  {4096, 1024, 2},
                {4096, 128, 1},  {1, 1, 1},       {1000000, 4096, 1}};
  for (const auto& [n, k, count] : kCases) {
    EXPECT_EQ(ChainsFor(Format::kFP8, n, k).count, count) << n << "x" << k;
    EXPECT_EQ(ChainsFor(Format::kFP8, n, k).of_half, 0) << n << "x" << k;
  }
}

WeightSpec FourBits(Format format, int64_t n, int64_t k) {
  WeightSpec spec = Spec(format, n, k);
  spec.group_size = 128;
  spec.scale_dtype = format == Format::kInt4 ? DType::kBF16 : DType::kF32;
  return spec;
}

struct ChainCase {
  std::string name;
  WeightSpec spec;
  bool on_hopper;
};
std::vector<ChainCase> ChainCases() {
  std::vector<ChainCase> cases;
  const auto add = [&](std::string name, bool on_hopper, auto change) {
    cases.push_back({std::move(name), FourBits(Format::kInt4, 4096, 8192), on_hopper});
    change(cases.back().spec);
  };
  add("plain", true, [](WeightSpec&) {});
  add("one chain", true, [](WeightSpec& spec) { spec.n = 28672; });
  add("ragged", true, [](WeightSpec& spec) { spec.k = 531; });
  add("F16 scales", true, [](WeightSpec& spec) { spec.scale_dtype = DType::kF16; });
  add("zero points", true, [](WeightSpec& spec) { spec.has_zero_points = true; });
  add("groups of 32", true, [](WeightSpec& spec) { spec.group_size = 32; });
  add("groups of 256", true, [](WeightSpec& spec) { spec.group_size = 256; });
  add("NF4", true, [](WeightSpec& spec) { spec.format = Format::kNF4; });
  add("FP4", true, [](WeightSpec& spec) { spec.format = Format::kFP4; });
  add("F32 scales", false, [](WeightSpec& spec) { spec.scale_dtype = DType::kF32; });
  add("act-order", false, [](WeightSpec& spec) { spec.has_group_index = true; });
  add("groups of 16", false, [](WeightSpec& spec) { spec.group_size = 16; });
  add("NF4 of cut units", false, [](WeightSpec& spec) {
    spec.format = Format::kNF4;
    spec.k = 8200;
  });
  return cases;
}

TEST(HasChainKernels, OfUnitsWithScalesOf16BitsInTheirOrderOnHopper) {
  for (const ChainCase& chains : ChainCases()) {
    EXPECT_EQ(HasChainKernels(chains.spec, kHopper), chains.on_hopper) << chains.name;
    for (const int other : {80, 89, 100, 120}) {
      EXPECT_FALSE(HasChainKernels(chains.spec, other)) << chains.name << " on " << other;
    }
  }
}

// cuda_gemv adds 1 to 8 rows of weights that have kernels of chains in another order than 9 to 16:
// it must not meet them where bits may not depend on the number of rows.
TEST(HasChainKernels, OfWhatNoOtherKernelMeetsInBatchInvariantMode) {
  DeviceInfo device;
  device.kind = BackendKind::kCuda;
  device.batch_invariant = true;
  for (const ChainCase& chains : ChainCases()) {
    for (const int capability : {80, 89, kHopper, 100, 120}) {
      device.compute_capability = capability;
      Problem problem;
      problem.input = DType::kBF16;
      problem.weight = chains.spec;
      for (const int64_t m : {1, 8, 9, 16, 17, 100}) {
        problem.m = m;
        const std::string kernel(Select(problem, device).kernel);
        EXPECT_EQ(kernel.ends_with("_chain"), HasChainKernels(chains.spec, capability))
            << kernel << " of " << chains.name << ", M = " << m << " on " << capability;
      }
    }
  }
}

// x of K in halves comes in parts, that of one chain fits whole.
TEST(CudaKernelFits, UpToEightRowsOf4BitsInHalves) {
  constexpr struct {
    Format format;
    int64_t n, k;
    int64_t rows;
  } kCases[] = {{Format::kInt4, 64, 128, 8},
                {Format::kInt4, 4096, 4096, 8},
                {Format::kInt4, 16896, 28672, 8},
                {Format::kInt4, 4096, int64_t{1} << 22, 8},
                {Format::kInt4, 4096, int64_t{1} << 40, 0},
                {Format::kNF4, 4096, 4096, 8},
                {Format::kNF4, 8192, 28672, 8},
                {Format::kInt4, 28672, 4096, 8},
                {Format::kInt4, 28672, 28672, 2},
                {Format::kNF4, 28672, 4096, 8},
                {Format::kNF4, 28672, 28672, 2}};
  for (const auto& [format, n, k, rows] : kCases) {
    Problem problem;
    problem.input = DType::kBF16;
    problem.weight = FourBits(format, n, k);
    for (problem.m = 1; problem.m <= 9; ++problem.m) {
      EXPECT_EQ(CudaKernelFits(problem, "cuda_gemv_chain", kHopper), problem.m <= rows)
          << FormatName(format) << " " << n << "x" << k << ", M = " << problem.m;
      EXPECT_TRUE(CudaKernelFits(problem, "cuda_wgmma_chain", kHopper));
    }
  }
}

// The last rows that cuda_gemv_chain takes of FP8 weights.
TEST(CudaKernelFits, RowsOfFp8WhileXFitsOneBlockOrHalvesOfItTwo) {
  constexpr struct {
    int64_t n, k, rows;
  } kCases[] = {
      {4096, 4096, 16},   // 8 chains
      {6144, 4096, 16},   // 5
      {28672, 4096, 8},   // one
      {28672, 20480, 4},  // one
      {4096, 9216, 9},    // 72 units
      {4096, 14336, 8},   // more than 5 by halves
      {6144, 14336, 5},   // 5 chains have no halves
      {4096, 20000, 7},   // 79 and 78 units
      {4096, 100000, 1},  // by halves
      {4096, 200000, 0},
  };
  for (const auto& [n, k, rows] : kCases) {
    for (int64_t m = 1; m <= 20; ++m) {
      const Problem problem = Matmul(Spec(Format::kFP8, n, k), m);
      EXPECT_EQ(CudaKernelFits(problem, "cuda_gemv_chain", kHopper), m <= rows)
          << n << "x" << k << ", " << m;
    }
  }
}

// Rows that cuda_gemv_chain has no room for are of another kernel, and of another range.
TEST(ExplainMatmul, EndsARangeWhereMoreRowsDoNotFit) {
  DeviceInfo device;
  device.kind = BackendKind::kCuda;
  device.compute_capability = kHopper;
  device.batch_invariant = true;
  WeightSpec spec;
  spec.format = Format::kFP8;
  spec.n = 4096;
  const auto ranges = [&](int64_t k) {
    spec.k = k;
    std::string all;
    for (const ChoiceRange& range :
         ExplainMatmul(spec, DType::kBF16, DType::kBF16, QuantMode::kNone, device, 100)) {
      all += fmt::format("{}-{} {} {}; ", range.m_begin, range.m_end, range.choice.kernel,
                         range.choice.tile_m);
    }
    return all;
  };
  EXPECT_EQ(ranges(4096),
            "1-8 cuda_gemv_chain 8; 9-16 cuda_gemv_chain 16; 17-100 cuda_wgmma_chain 64; ");
  EXPECT_EQ(ranges(6528),
            "1-8 cuda_gemv_chain 8; 9-12 cuda_gemv_chain 16; 13-100 cuda_wgmma_chain 64; ");
  EXPECT_EQ(ranges(20480), "1-7 cuda_gemv_chain 8; 8-100 cuda_wgmma_chain 64; ");
}

}  // namespace
}  // namespace nibble::core
