#include "kernels/core/packed_units.h"

#include <vector>

#include "gtest/gtest.h"

namespace nibble::core {
namespace {

Chains ChainsFor(Format format, int64_t n, int64_t k) {
  WeightSpec spec;
  spec.format = format;
  spec.n = n;
  spec.k = k;
  return ChainsOf(spec);
}

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

// Rows that cuda_gemv_chain has no room for are of another kernel, and of another range.
TEST(ExplainMatmul, EndsARangeWhereMoreRowsDoNotFit) {
  DeviceInfo device;
  device.kind = BackendKind::kCuda;
  device.compute_capability = kHopper;
  device.batch_invariant = true;
  WeightSpec spec;
  spec.format = Format::kFP8;
  spec.n = 4096;
  spec.k = 16384;
  const std::vector<ChoiceRange> ranges =
      ExplainMatmul(spec, DType::kBF16, DType::kBF16, QuantMode::kNone, device, 100);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].choice.kernel, "cuda_gemv_chain");
  EXPECT_EQ(ranges[0].m_end, 4);
  EXPECT_EQ(ranges[1].choice.kernel, "cuda_wgmma_chain");
  EXPECT_EQ(ranges[1].m_begin, 5);
  EXPECT_EQ(ranges[1].m_end, 100);
}

}  // namespace
}  // namespace nibble::core
