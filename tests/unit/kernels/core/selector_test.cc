#include "nibble/selector.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/kernels/core/problems.h"

namespace nibble {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr Op kOps[] = {Op::kMatmul, Op::kDequantize, Op::kNormQuant, Op::kSiluMulQuant};
constexpr BackendKind kKinds[] = {BackendKind::kCpu, BackendKind::kCuda};
constexpr int64_t kMaxM = std::numeric_limits<int64_t>::max();

DeviceInfo Device(BackendKind kind) {
  DeviceInfo device;
  device.kind = kind;
  return device;
}

TEST(Select, IsTotalPureAndNamed) {
  for (BackendKind kind : kKinds) {
    for (Op op : kOps) {
      const auto names = KernelNames(kind, op);
      for (Format format : {Format::kDense, Format::kNF4, Format::kInt4, Format::kFP8}) {
        for (int64_t m : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{7}, int64_t{8}, int64_t{16},
                          int64_t{17}, int64_t{65537}, kMaxM}) {
          Problem problem = Matmul(Spec(format, 3, 5), m);
          problem.op = op;
          const Choice choice = Select(problem, Device(kind));
          EXPECT_THAT(names, Contains(choice.kernel));
          EXPECT_THAT(ToString(choice), StartsWith(std::string(choice.kernel) + " tile "));
          EXPECT_GE(choice.tile_m, 1);
          EXPECT_GE(choice.split_k, 1);
          EXPECT_EQ(choice, Select(problem, Device(kind)));
        }
      }
    }
  }
}

TEST(Select, ChangesKernelWithTheRows) {
  const auto kernel = [](BackendKind kind, int64_t m) {
    return std::string(Select(Matmul(Spec(Format::kNF4, 64, 128), m), Device(kind)).kernel);
  };
  EXPECT_EQ(kernel(BackendKind::kCpu, 1), "cpu_gemv");
  EXPECT_EQ(kernel(BackendKind::kCpu, 7), "cpu_gemv");
  EXPECT_EQ(kernel(BackendKind::kCpu, 8), "cpu_gemm");
  EXPECT_EQ(kernel(BackendKind::kCuda, 1), "cuda_gemv");
  EXPECT_EQ(kernel(BackendKind::kCuda, 64), "cuda_gemv");
  EXPECT_EQ(kernel(BackendKind::kCuda, 65), "cuda_gemm");
}

TEST(Select, TakesTheTensorCoresForSixteenBitActivationsAlone) {
  const auto kernel = [](const WeightSpec& spec, DType input, QuantMode mode = QuantMode::kNone) {
    Problem problem = Matmul(spec, 4);
    problem.input = input;
    problem.quant = mode;
    return std::string(Select(problem, Device(BackendKind::kCuda)).kernel);
  };
  const WeightSpec fp8 = Spec(Format::kFP8, 64, 300);
  EXPECT_EQ(kernel(fp8, DType::kBF16), "cuda_gemv");
  EXPECT_EQ(kernel(fp8, DType::kF16), "cuda_gemv");
  EXPECT_EQ(kernel(fp8, DType::kF32), "cuda_gemm_f32");
  EXPECT_EQ(kernel(fp8, DType::kBF16, QuantMode::kPerToken), "cuda_gemv");
  EXPECT_EQ(kernel(fp8, DType::kF8E4M3, QuantMode::kPerGroup), "cuda_gemm_f32");
  WeightSpec dense = Spec(Format::kDense, 64, 300);
  dense.dtype = DType::kF16;
  EXPECT_EQ(kernel(dense, DType::kF16), "cuda_gemm");
  EXPECT_EQ(kernel(dense, DType::kBF16), "cuda_gemm_f32");
}

TEST(Select, MultipliesFp8CodesOnHopper) {
  constexpr int64_t kFew = 32;
  DeviceInfo device = Device(BackendKind::kCuda);
  const auto kernel = [&](const WeightSpec& spec, int64_t m, QuantMode mode) {
    Problem problem = Matmul(spec, m);
    problem.input = DType::kF8E4M3;
    problem.quant = mode;
    return std::string(Select(problem, device).kernel);
  };
  WeightSpec channel = Spec(Format::kFP8, 64, 300);
  channel.scale_layout = ScaleLayout::kChannel;
  WeightSpec block = Spec(Format::kFP8, 64, 300);
  block.scale_layout = ScaleLayout::kBlock;
  device.compute_capability = 90;
  EXPECT_EQ(kernel(channel, 8, QuantMode::kPerToken), "cuda_gemv");
  EXPECT_EQ(kernel(channel, kFew, QuantMode::kPerToken), "cuda_fp8_gemm");
  EXPECT_EQ(kernel(channel, kFew + 1, QuantMode::kPerToken), "cuda_fp8_cublas");
  EXPECT_EQ(kernel(channel, kFew + 1, QuantMode::kStatic), "cuda_fp8_cublas");
  EXPECT_EQ(kernel(channel, kFew + 1, QuantMode::kPerGroup), "cuda_fp8_gemm");
  EXPECT_EQ(kernel(block, 16, QuantMode::kPerToken), "cuda_fp8_gemm");
  EXPECT_EQ(kernel(block, 16, QuantMode::kPerGroup), "cuda_fp8_gemm");
  EXPECT_EQ(kernel(block, 17, QuantMode::kPerGroup), "cuda_fp8_cublas");
  block.scale_block_n = 64;
  EXPECT_EQ(kernel(block, kFew + 1, QuantMode::kPerGroup), "cuda_fp8_gemm");
  block.scale_block_k = 48;
  EXPECT_EQ(kernel(block, kFew, QuantMode::kPerGroup), "cuda_gemm_f32");
  channel.n = 65;
  EXPECT_EQ(kernel(channel, kFew + 1, QuantMode::kPerToken), "cuda_fp8_gemm");
  device.compute_capability = 89;
  EXPECT_EQ(kernel(channel, kFew + 1, QuantMode::kPerToken), "cuda_gemv");
  EXPECT_EQ(kernel(channel, 65, QuantMode::kPerToken), "cuda_gemm_f32");
}

TEST(Select, MultipliesManyRowsByWgmmaOnHopper) {
  DeviceInfo device = Device(BackendKind::kCuda);
  const auto kernel = [&](const WeightSpec& spec, int64_t m) {
    return std::string(Select(Matmul(spec, m), device).kernel);
  };
  WeightSpec int4 = Spec(Format::kInt4, 4096, 4096);
  int4.scale_dtype = DType::kBF16;
  WeightSpec long_int4 = int4;
  long_int4.k = 8192;
  const WeightSpec nf4 = Spec(Format::kNF4, 16384, 4096);
  device.compute_capability = 90;
  EXPECT_EQ(kernel(int4, 8), "cuda_gemv");
  EXPECT_EQ(kernel(int4, 9), "cuda_wgmma");
  EXPECT_EQ(kernel(int4, 1024), "cuda_wgmma");
  EXPECT_EQ(kernel(int4, 1025), "cuda_gemm");
  EXPECT_EQ(kernel(nf4, 8), "cuda_gemv");
  EXPECT_EQ(kernel(nf4, 9), "cuda_wgmma");
  EXPECT_EQ(kernel(long_int4, 8), "cuda_gemv");
  EXPECT_EQ(kernel(long_int4, 9), "cuda_wgmma");
  // More outputs than 66 pairs of blocks take at once.
  WeightSpec wide_int4 = int4;
  wide_int4.n = 8448;
  EXPECT_EQ(kernel(wide_int4, 9), "cuda_wgmma");
  wide_int4.n = 8449;
  EXPECT_EQ(kernel(wide_int4, 16), "cuda_gemv");
  wide_int4.n = 20480;
  EXPECT_EQ(kernel(wide_int4, 65537), "cuda_wgmma");
  wide_int4.has_zero_points = true;
  EXPECT_EQ(kernel(wide_int4, 16), "cuda_gemv");
  wide_int4.group_size = 64;
  EXPECT_EQ(kernel(wide_int4, 9), "cuda_wgmma");
  EXPECT_EQ(kernel(Spec(Format::kNF4, 4096, 8192), 9), "cuda_wgmma");
  WeightSpec fp8 = Spec(Format::kFP8, 4096, 4096);
  EXPECT_EQ(kernel(fp8, 16), "cuda_gemv");
  EXPECT_EQ(kernel(fp8, 17), "cuda_wgmma");
  fp8.scale_layout = ScaleLayout::kBlock;
  EXPECT_EQ(kernel(fp8, 17), "cuda_mma");
  int4.scale_dtype = DType::kF32;
  EXPECT_EQ(kernel(int4, 17), "cuda_mma");
  int4.scale_dtype = DType::kBF16;
  int4.has_group_index = true;
  EXPECT_EQ(kernel(int4, 17), "cuda_wgmma");
  int4.group_size = 256;
  EXPECT_EQ(kernel(int4, 17), "cuda_mma");
}

TEST(Select, TakesSixteenRowsOfARoundOfTilesByWgmma) {
  DeviceInfo device = Device(BackendKind::kCuda);
  device.compute_capability = 90;
  const auto kernel = [&](int64_t n, int64_t k, DType scales) {
    WeightSpec spec = Spec(Format::kInt4, n, k);
    spec.scale_dtype = scales;
    return std::string(Select(Matmul(spec, 16), device).kernel);
  };
  EXPECT_EQ(kernel(27647, 4096, DType::kBF16), "cuda_gemv");
  EXPECT_EQ(kernel(27648, 4096, DType::kBF16), "cuda_wgmma");
  EXPECT_EQ(kernel(33792, 4096, DType::kBF16), "cuda_wgmma");
  EXPECT_EQ(kernel(33793, 4096, DType::kBF16), "cuda_gemv");
  EXPECT_EQ(kernel(28672, 3968, DType::kBF16), "cuda_gemv");  // not whole turns
  EXPECT_EQ(kernel(28672, 4096, DType::kF32), "cuda_gemv");   // not for wgmma
}

TEST(Select, MultipliesManyRowsByMmaElsewhere) {
  DeviceInfo device = Device(BackendKind::kCuda);
  const auto kernel = [&](const WeightSpec& spec, int64_t m) {
    return std::string(Select(Matmul(spec, m), device).kernel);
  };
  WeightSpec block = Spec(Format::kFP8, 4096, 4096);
  block.scale_layout = ScaleLayout::kBlock;
  WeightSpec f32 = Spec(Format::kInt4, 4096, 4096);
  f32.scale_dtype = DType::kF32;
  for (const WeightSpec& spec : {Spec(Format::kNF4, 16384, 4096), block, f32}) {
    for (const int capability : {80, 89, 100}) {
      device.compute_capability = capability;
      EXPECT_EQ(kernel(spec, 16), "cuda_gemv") << capability;
      EXPECT_EQ(kernel(spec, 17), "cuda_mma") << capability;
      EXPECT_EQ(kernel(spec, 1024), "cuda_mma") << capability;
      EXPECT_EQ(kernel(spec, 1025), "cuda_gemm") << capability;
    }
    device.compute_capability = 75;
    EXPECT_EQ(kernel(spec, 64), "cuda_gemv");
    EXPECT_EQ(kernel(spec, 65), "cuda_gemm");
  }
  // What wgmma does not take.
  device.compute_capability = 90;
  for (const WeightSpec& spec : {block, f32}) {
    EXPECT_EQ(kernel(spec, 8), "cuda_gemv");
    EXPECT_EQ(kernel(spec, 128), "cuda_mma");
    EXPECT_EQ(kernel(spec, 129), "cuda_gemm");
  }
}

TEST(Select, KeepsToKernelsWhoseBitsDoNotDependOnTheRowsWhereAsked) {
  DeviceInfo device = Device(BackendKind::kCuda);
  device.compute_capability = 90;
  device.batch_invariant = true;
  const auto choice = [&](const WeightSpec& spec, int64_t m, DType input = DType::kBF16) {
    Problem problem = Matmul(spec, m);
    problem.input = input;
    return Select(problem, device);
  };
  // The order of pairs of blocks, one chain of K, and its equal parts.
  const WeightSpec pairs = Spec(Format::kNF4, 64, 8192);
  for (const auto& [chains, rows] : {std::pair{pairs, 8},
                                     {Spec(Format::kNF4, 28672, 4096), 8},
                                     {Spec(Format::kFP8, 4096, 4096), 16},
                                     {Spec(Format::kFP8, 4096, 20480), 7}}) {
    EXPECT_EQ(choice(chains, 1).kernel, "cuda_gemv_chain");
    EXPECT_EQ(choice(chains, rows).kernel, "cuda_gemv_chain") << rows;
    EXPECT_EQ(choice(chains, rows).tile_m, rows > 8 ? 16 : 8) << rows;
    EXPECT_EQ(choice(chains, rows + 1).kernel, "cuda_wgmma_chain") << rows;
    EXPECT_EQ(choice(chains, 4096).kernel, "cuda_wgmma_chain") << rows;
  }
  EXPECT_EQ(choice(Spec(Format::kInt4, 64, 8192), 33).kernel, "cuda_gemv");  // scales of F32
  EXPECT_EQ(choice(Spec(Format::kInt4, 64, 8192), 33).tile_m, 16);
  EXPECT_EQ(choice(pairs, 64, DType::kF32).kernel, "cuda_gemm_f32");
  EXPECT_EQ(choice(Spec(Format::kDense, 64, 64), 64).kernel, "cuda_gemm_f32");
  WeightSpec act_order = Spec(Format::kInt4, 64, 256);
  act_order.has_group_index = true;
  EXPECT_EQ(choice(act_order, 1).kernel, "cuda_gemm_f32");
  Problem norm = RowOp(Op::kNormQuant, 64, 64);
  EXPECT_EQ(Select(norm, device).kernel, "cuda_norm_quant");
  device.compute_capability = 89;
  EXPECT_EQ(choice(pairs, 33).tile_m, 16);
  EXPECT_EQ(choice(Spec(Format::kFP8, 64, 8192), 33).tile_m, 8);
}

TEST(Select, DecodesWhatDoesNotFitTheUnitsOfTheTensorCores) {
  const auto kernel = [](const WeightSpec& spec) {
    return std::string(Select(Matmul(spec, 4), Device(BackendKind::kCuda)).kernel);
  };
  WeightSpec int4 = Spec(Format::kInt4, 64, 531);
  for (const auto& [group, expected] : {std::pair<int64_t, const char*>{32, "cuda_gemv"},
                                        {64, "cuda_gemv"},
                                        {128, "cuda_gemv"},
                                        {256, "cuda_gemv"},
                                        {531, "cuda_gemv"},
                                        {40, "cuda_gemm"},
                                        {96, "cuda_gemm"}}) {
    int4.group_size = group;
    EXPECT_EQ(kernel(int4), expected) << group;
  }
  int4.group_size = 128;
  int4.has_group_index = true;
  EXPECT_EQ(kernel(int4), "cuda_gemv");
  EXPECT_EQ(kernel(Spec(Format::kNF4, 64, 531)), "cuda_gemm");
  WeightSpec nf4 = Spec(Format::kNF4, 64, 512);
  for (const auto& [block, expected] : {std::pair<int64_t, const char*>{32, "cuda_gemm"},
                                        {64, "cuda_gemv"},
                                        {256, "cuda_gemv"},
                                        {1024, "cuda_gemm"}}) {
    nf4.block_size = block;
    EXPECT_EQ(kernel(nf4), expected) << block;
  }
  WeightSpec fp8 = Spec(Format::kFP8, 64, 300);
  fp8.scale_layout = ScaleLayout::kBlock;
  EXPECT_EQ(kernel(fp8), "cuda_gemv");
  fp8.scale_block_k = 48;
  EXPECT_EQ(kernel(fp8), "cuda_gemm");
}

TEST(KernelNames, AreTheLabelsOfTheMetrics) {
  const auto names = [](BackendKind kind, Op op) { return KernelNames(kind, op); };
  EXPECT_THAT(names(BackendKind::kCpu, Op::kMatmul), ElementsAre("cpu_gemv", "cpu_gemm"));
  EXPECT_THAT(names(BackendKind::kCpu, Op::kDequantize), ElementsAre("cpu_dequantize"));
  EXPECT_THAT(names(BackendKind::kCpu, Op::kNormQuant), ElementsAre("cpu_norm_quant"));
  EXPECT_THAT(names(BackendKind::kCpu, Op::kSiluMulQuant), ElementsAre("cpu_silu_mul_quant"));
  EXPECT_THAT(names(BackendKind::kCuda, Op::kMatmul),
              ElementsAre("cuda_gemv", "cuda_fp8_gemm", "cuda_fp8_cublas", "cuda_wgmma", "cuda_mma",
                          "cuda_gemm", "cuda_gemm_f32", "cuda_gemv_chain", "cuda_wgmma_chain"));
  EXPECT_THAT(names(BackendKind::kCuda, Op::kDequantize), ElementsAre("cuda_dequantize"));
  EXPECT_THAT(names(BackendKind::kCuda, Op::kNormQuant), ElementsAre("cuda_norm_quant"));
  EXPECT_THAT(names(BackendKind::kCuda, Op::kSiluMulQuant), ElementsAre("cuda_silu_mul_quant"));
}

TEST(ToString, OfAChoice) {
  EXPECT_EQ(ToString(Choice{"cpu_gemv", 1, 4, 0, 1}), "cpu_gemv tile 1x4xK split 1");
  EXPECT_EQ(ToString(Choice{"cuda_gemm", 128, 64, 32, 4}), "cuda_gemm tile 128x64x32 split 4");
  EXPECT_EQ(ToString(Choice{"cpu_dequantize", 1, 0, 0, 1}), "cpu_dequantize tile 1xNxK split 1");
}

TEST(ExplainMatmul, RangesPartitionTheRowsAndAgreeWithSelect) {
  const WeightSpec weight = Spec(Format::kInt4, 4096, 4096);
  for (BackendKind kind : kKinds) {
    for (int64_t max_m : {1, 6, 7, 8, 9, 16, 17, 4096}) {
      const auto ranges =
          ExplainMatmul(weight, DType::kBF16, DType::kBF16, QuantMode::kNone, Device(kind), max_m);
      int64_t next = 1;
      for (size_t i = 0; i < ranges.size(); ++i) {
        EXPECT_EQ(ranges[i].m_begin, next);
        EXPECT_GE(ranges[i].m_end, ranges[i].m_begin);
        if (i > 0) {
          EXPECT_NE(ranges[i].choice, ranges[i - 1].choice);
        }
        for (int64_t m = ranges[i].m_begin; m <= ranges[i].m_end; ++m) {
          ASSERT_EQ(Select(Matmul(weight, m), Device(kind)), ranges[i].choice) << m;
        }
        next = ranges[i].m_end + 1;
      }
      EXPECT_EQ(next, max_m + 1);
    }
    EXPECT_EQ(ExplainMatmul(weight, DType::kF32, DType::kF32, QuantMode::kNone, Device(kind), kMaxM)
                  .back()
                  .m_end,
              kMaxM);
    EXPECT_TRUE(
        ExplainMatmul(weight, DType::kF32, DType::kF32, QuantMode::kNone, Device(kind), 0).empty());
  }
}

}  // namespace
}  // namespace nibble
