// The bytes that an op moves, as the selector counts them.
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"
#include "nibble/selector.h"
#include "tests/unit/kernels/core/problems.h"

namespace nibble {
namespace {

void ExpectTraffic(const Problem& problem, uint64_t read_bytes, uint64_t written_bytes) {
  const Traffic traffic = TrafficOf(problem);
  EXPECT_EQ(traffic.read_bytes, read_bytes);
  EXPECT_EQ(traffic.written_bytes, written_bytes);
}

TEST(TrafficOf, MatmulReadsTheWeightOnceWhateverM) {
  WeightSpec weight = Spec(Format::kInt4, 10, 300);  // 10 x 150 codes, 10 x 3 scales
  weight.scale_dtype = DType::kF16;
  ExpectTraffic(Matmul(weight, 1), 1500 + 60 + 600, 20);
  ExpectTraffic(Matmul(weight, 9), 1500 + 60 + 9 * 600, 180);
  weight.has_bias = true;
  weight.bias_dtype = DType::kF32;
  Problem problem = Matmul(weight, 2);
  problem.input = DType::kF32;
  problem.output = DType::kF32;
  ExpectTraffic(problem, 1500 + 60 + 40 + 2400, 80);
}

TEST(TrafficOf, MatmulReadsTheScalesOfQuantizedActivations) {
  Problem problem = Matmul(Spec(Format::kFP8, 10, 300), 2);  // 3000 codes, one scale
  problem.quant = QuantMode::kPerGroup;
  ExpectTraffic(problem, 3004 + 2 * 600, 40);  // quantized on the way: no scales in memory
  problem.input = DType::kF8E4M3;
  ExpectTraffic(problem, 3004 + 2 * 300 + 2 * 3 * 4, 40);
  problem.quant = QuantMode::kPerToken;
  ExpectTraffic(problem, 3004 + 2 * 300 + 2 * 4, 40);
}

TEST(TrafficOf, DequantizeReadsTheRowsItDecodes) {
  WeightSpec weight = Spec(Format::kNF4, 64, 128);
  weight.has_bias = true;
  Problem problem = Matmul(weight, 4);
  problem.op = Op::kDequantize;
  ExpectTraffic(problem, 4 * 64 + 4 * 2 * 4, 4 * 128 * 2);
}

TEST(TrafficOf, NormAndSilu) {
  Problem problem = RowOp(Op::kNormQuant, 3, 200);
  ExpectTraffic(problem, 3 * 400 + 400, 3 * 400);
  problem.has_residual = true;
  problem.output = DType::kI8;
  problem.quant = QuantMode::kPerGroup;
  ExpectTraffic(problem, 2 * 3 * 400 + 400, 3 * 200 + 3 * 2 * 4 + 3 * 400);
  problem = RowOp(Op::kSiluMulQuant, 3, 200);
  ExpectTraffic(problem, 3 * 800, 3 * 400);
  problem.output = DType::kF8E4M3;
  problem.quant = QuantMode::kStatic;
  ExpectTraffic(problem, 3 * 800, 3 * 200);
  problem.quant = QuantMode::kPerToken;
  ExpectTraffic(problem, 3 * 800, 3 * 200 + 3 * 4);
}

TEST(TrafficOf, IsZeroWithoutRowsAndSaturates) {
  for (Op op : {Op::kMatmul, Op::kDequantize, Op::kNormQuant, Op::kSiluMulQuant}) {
    Problem problem = Matmul(Spec(Format::kNF4, 64, 64), 0);
    problem.op = op;
    problem.d = 64;
    ExpectTraffic(problem, 0, 0);
  }
  constexpr int64_t kMaxM = std::numeric_limits<int64_t>::max();
  constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  ExpectTraffic(Matmul(Spec(Format::kNF4, 64, 64), kMaxM), kAll, kAll);
  ExpectTraffic(RowOp(Op::kSiluMulQuant, kMaxM, 64), kAll, kAll);
}

}  // namespace
}  // namespace nibble
