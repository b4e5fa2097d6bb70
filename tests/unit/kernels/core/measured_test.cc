#include "nibble/measured.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;

DeviceInfo Cpu() {
  DeviceInfo device;
  device.peak_bandwidth_bytes_per_second = 1e10;
  return device;
}

DeviceInfo Hopper() {
  DeviceInfo device;
  device.kind = BackendKind::kCuda;
  device.compute_capability = 90;
  return device;
}

MatmulKey Key(Format format = Format::kNF4, int64_t n = 64, int64_t k = 128) {
  MatmulKey key;
  key.weight.format = format;
  key.weight.n = n;
  key.weight.k = k;
  return key;
}

std::vector<std::string> KernelsFor(const MatmulKey& key, int64_t m, const DeviceInfo& device) {
  std::vector<std::string> kernels;
  for (const Choice& choice : MatmulCandidates(ProblemOf(key, m), device)) {
    kernels.emplace_back(choice.kernel);
  }
  return kernels;
}

MeasuredRows Rows(int64_t m, double gemv_us, double gemm_us) {
  return {m, {{"cpu_gemv", gemv_us}, {"cpu_gemm", gemm_us}}};
}

// "1..4 cpu_gemv measured; ...".
std::string Text(const std::vector<ChoiceRange>& ranges) {
  std::string text;
  for (const ChoiceRange& range : ranges) {
    text += std::to_string(range.m_begin) + ".." + std::to_string(range.m_end) + " " +
            std::string(range.choice.kernel) + (range.measured ? " measured; " : "; ");
  }
  return text;
}

TEST(MatmulCandidates, AreEveryKernelThatFitsWithSelectsOwnFirst) {
  EXPECT_THAT(KernelsFor(Key(), 1, Cpu()), ElementsAre("cpu_gemv", "cpu_gemm"));
  EXPECT_THAT(KernelsFor(Key(), 8, Cpu()), ElementsAre("cpu_gemm", "cpu_gemv"));
  EXPECT_THAT(KernelsFor(Key(), 1, Hopper()),
              ElementsAre("cuda_gemv", "cuda_wgmma", "cuda_mma", "cuda_gemm", "cuda_gemm_f32"));
  EXPECT_THAT(KernelsFor(Key(), 4096, Hopper()),
              ElementsAre("cuda_gemm", "cuda_wgmma", "cuda_mma", "cuda_gemv", "cuda_gemm_f32"));
  MatmulKey fp8 = Key(Format::kFP8);
  fp8.activation = QuantMode::kPerToken;
  EXPECT_THAT(KernelsFor(fp8, 33, Hopper()),
              ElementsAre("cuda_fp8_cublas", "cuda_fp8_gemm", "cuda_gemv", "cuda_gemm_f32"));
  MatmulKey f32 = Key();
  f32.input = DType::kF32;
  EXPECT_THAT(KernelsFor(f32, 1, Hopper()), ElementsAre("cuda_gemm_f32"));
}

TEST(MatmulCandidates, HaveTheTileOfTheTableForTheseRows) {
  const auto tile = [](int64_t m) {
    for (const Choice& choice : MatmulCandidates(ProblemOf(Key(), m), Hopper())) {
      if (choice.kernel == "cuda_gemv") return choice.tile_m;
    }
    return 0;
  };
  EXPECT_EQ(tile(8), 8);
  EXPECT_EQ(tile(9), 16);
  EXPECT_EQ(tile(512), 16);
}

TEST(MatmulCandidates, AreTheOneChoiceWhereBitsMustNotDependOnTheBatch) {
  DeviceInfo device = Hopper();
  device.batch_invariant = true;
  EXPECT_THAT(KernelsFor(Key(), 16, device), ElementsAre("cuda_wgmma_chain"));
  EXPECT_THAT(KernelsFor(Key(), 512, device), ElementsAre("cuda_wgmma_chain"));
  Problem norm;
  norm.op = Op::kNormQuant;
  EXPECT_TRUE(MatmulCandidates(norm, Cpu()).empty());
}

TEST(PredictMicroseconds, IsBytesOverBandwidth) {
  const Problem problem = ProblemOf(Key(Format::kDense, 10, 100), 2);
  const Traffic traffic = TrafficOf(problem);
  const double bytes = static_cast<double>(traffic.read_bytes + traffic.written_bytes);
  EXPECT_DOUBLE_EQ(PredictMicroseconds(problem, "cpu_gemv", Cpu()), bytes * 1e-4);
  EXPECT_EQ(PredictMicroseconds(problem, "cuda_gemm", Hopper()), 0.0);
  EXPECT_EQ(PredictMicroseconds(ProblemOf(Key(), 0), "cpu_gemv", Cpu()), 0.0);
  DeviceInfo without_peak = Hopper();
  without_peak.peak_bandwidth_bytes_per_second = 1e12;
  EXPECT_DOUBLE_EQ(PredictMicroseconds(problem, "cuda_gemm", without_peak), bytes * 1e-6);
}

TEST(BestMeasured, ReplacesTheBuiltInChoiceOnlyForAGain) {
  EXPECT_EQ(BestMeasured(Key(), Cpu(), Rows(4, 100, 98)).kernel, "cpu_gemv");
  EXPECT_EQ(BestMeasured(Key(), Cpu(), Rows(4, 100, 97)).kernel, "cpu_gemm");
  EXPECT_EQ(BestMeasured(Key(), Cpu(), Rows(8, 98, 100)).kernel, "cpu_gemm");
  EXPECT_EQ(BestMeasured(Key(), Cpu(), Rows(8, 90, 100)).kernel, "cpu_gemv");
  // The built-in one was not timed.
  EXPECT_EQ(BestMeasured(Key(), Cpu(), {8, {{"cpu_gemv", 1}}}).kernel, "cpu_gemm");
  // A kernel that does not fit does not count.
  EXPECT_EQ(BestMeasured(Key(), Cpu(), {1, {{"cpu_gemv", 9}, {"cuda_gemv", 1}}}).kernel,
            "cpu_gemv");
}

TEST(MakeMeasured, RangesReachFromOneMeasuredNumberOfRowsToTheNext) {
  const auto ranges = [](std::vector<MeasuredRows> rows) {
    return Text(MakeMeasured(Key(), Cpu(), std::move(rows)).ranges);
  };
  EXPECT_EQ(ranges({}), "");
  EXPECT_EQ(ranges({Rows(1, 10, 20), Rows(2, 20, 10), Rows(64, 30, 10)}),
            "1..1 cpu_gemv measured; 2..64 cpu_gemm measured; ");
  // Between 4 and 16 it is not known; the built-in table has its crossover there.
  EXPECT_EQ(ranges({Rows(4, 10, 20), Rows(16, 30, 10)}),
            "1..4 cpu_gemv measured; 5..7 cpu_gemv; 8..15 cpu_gemm; 16..16 cpu_gemm measured; ");
  // On Hopper the built-in table says wgmma here, which neither end does.
  const MeasuredRows gemv{32, {{"cuda_wgmma", 50}, {"cuda_gemv", 10}, {"cuda_gemm", 90}}};
  const MeasuredRows gemm{128, {{"cuda_wgmma", 50}, {"cuda_gemv", 90}, {"cuda_gemm", 10}}};
  EXPECT_EQ(Text(MakeMeasured(Key(), Hopper(), {gemv, gemm}).ranges),
            "1..32 cuda_gemv measured; 33..128 cuda_gemm measured; ");
}

TEST(SelectMeasured, TakesTheTableWhereItKnows) {
  MeasuredTable table;
  const auto kernel = [&](const MatmulKey& key, int64_t m, DeviceInfo device = Cpu()) {
    return std::string(Select(ProblemOf(key, m), device, &table).kernel);
  };
  EXPECT_EQ(kernel(Key(), 7), "cpu_gemv");
  table.Set(Key(), MakeMeasured(Key(), Cpu(), {Rows(1, 20, 10), Rows(16, 10, 20)}));
  EXPECT_EQ(kernel(Key(), 1), "cpu_gemm");
  EXPECT_EQ(kernel(Key(), 7), "cpu_gemv");
  EXPECT_EQ(kernel(Key(), 16), "cpu_gemv");
  EXPECT_EQ(kernel(Key(), 17), "cpu_gemm");  // more than was measured
  EXPECT_EQ(kernel(Key(), 0), "cpu_gemm");
  MatmulKey other = Key();
  other.output = DType::kF32;
  EXPECT_EQ(kernel(other, 1), "cpu_gemv");
  other = Key();
  other.weight.nested = true;
  EXPECT_EQ(kernel(other, 1), "cpu_gemv");
  DeviceInfo invariant = Cpu();
  invariant.batch_invariant = true;
  EXPECT_EQ(kernel(Key(), 1, invariant), "cpu_gemv");
  EXPECT_EQ(Select(ProblemOf(Key(), 1), Cpu(), nullptr).kernel, "cpu_gemv");
}

TEST(ExplainMeasured, AgreesWithSelect) {
  MeasuredTable table;
  table.Set(Key(),
            MakeMeasured(Key(), Cpu(), {Rows(1, 20, 10), Rows(4, 10, 20), Rows(16, 10, 20)}));
  for (const int64_t max_m : {1, 2, 4, 15, 16, 17, 100}) {
    int64_t next = 1;
    for (const ChoiceRange& range : ExplainMatmul(Key(), Cpu(), table.Find(Key()), max_m)) {
      EXPECT_EQ(range.m_begin, next);
      for (int64_t m = range.m_begin; m <= range.m_end; ++m) {
        EXPECT_EQ(Select(ProblemOf(Key(), m), Cpu(), &table), range.choice) << m;
      }
      next = range.m_end + 1;
    }
    EXPECT_EQ(next, max_m + 1);
  }
  EXPECT_EQ(Text(ExplainMatmul(Key(), Cpu(), table.Find(Key()), 100)),
            "1..1 cpu_gemm measured; 2..3 cpu_gemv; 4..16 cpu_gemv measured; 17..100 cpu_gemm; ");
}

}  // namespace
}  // namespace nibble
