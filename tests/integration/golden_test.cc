// Every golden checkpoint through the real server: loaded, dequantized bit for bit, multiplied
// within the derived tolerance.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <vector>

#include "nibble/numeric.h"
#include "tests/integration/fixture.h"
#include "tests/support/tolerance.h"

namespace nibble::testing {
namespace {

class GoldenRpc : public ::testing::TestWithParam<std::string> {
 protected:
  GoldenRpc() : server_({"--weights-root=" + GoldenRoot()}), stubs_(server_) {}

  void SetUp() override {
    golden_ = ReadGolden(GetParam());
    std::vector<v1::LoadProgress> progress;
    const grpc::Status loaded = Load(stubs_, golden_.name, golden_.name, &progress);
    ASSERT_TRUE(loaded.ok()) << loaded.error_message();
    ASSERT_FALSE(progress.empty());
    EXPECT_TRUE(progress.back().done());
    EXPECT_EQ(progress.back().bytes_done(), progress.back().bytes_total());
    EXPECT_EQ(progress.back().layers_done(), 1);
  }

  double RowNorm(const v1::Tensor& tensor, int64_t row, int64_t cols) const {
    const DType dtype = tensor.dtype() == v1::DTYPE_F32   ? DType::kF32
                        : tensor.dtype() == v1::DTYPE_F16 ? DType::kF16
                                                          : DType::kBF16;
    double sum = 0;
    for (int64_t i = row * cols; i < (row + 1) * cols; ++i) {
      const double value = LoadAsFloat(tensor.data().data(), dtype, i);
      sum += value * value;
    }
    return std::sqrt(sum);
  }

  // Compares y [m, N] of `dtype` with the golden answer of x repeated.
  ComparisonReport Compare(const v1::Tensor& y, int64_t m, DType dtype) const {
    ComparisonReport report;
    for (int64_t row = 0; row < m; ++row) {
      const double x_norm = RowNorm(golden_.x, row % 5, golden_.k);
      for (int64_t col = 0; col < golden_.n; ++col) {
        const double expected = golden_.y[static_cast<size_t>(row % 5 * golden_.n + col)];
        const double received = LoadAsFloat(y.data().data(), dtype, row * golden_.n + col);
        const double bound =
            MatmulTolerance(golden_.k, x_norm, RowNorm(golden_.weight, col, golden_.k), expected,
                            dtype, {.eps_w = kEpsWeightBF16});
        report.Add(row, col, expected, received, bound, std::fabs(expected - received) / bound);
      }
    }
    return report;
  }

  ServerProcess server_;
  Stubs stubs_;
  Golden golden_;
};

TEST_P(GoldenRpc, DequantizeGivesTheWeightBitForBit) {
  for (const int64_t chunk_bytes : {int64_t{0}, int64_t{1000}}) {
    v1::DequantizeRequest request;
    request.set_weight(golden_.layer);
    request.set_dtype(golden_.weight.dtype());
    request.set_max_chunk_bytes(chunk_bytes);
    grpc::ClientContext context;
    SetDeadline(context);
    auto reader = stubs_.linear->Dequantize(&context, request);
    std::string received;
    int64_t next_row = 0;
    for (v1::DequantizeResponse chunk; reader->Read(&chunk);) {
      EXPECT_EQ(chunk.row_begin(), next_row);
      EXPECT_EQ(chunk.rows().shape(1), golden_.k);
      next_row += chunk.rows().shape(0);
      received += chunk.rows().data();
    }
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(next_row, golden_.n);
    EXPECT_EQ(received, golden_.weight.data());
  }
}

TEST_P(GoldenRpc, MatmulIsWithinTheDerivedTolerance) {
  for (const int64_t m : {1, 5, 64}) {
    for (const auto& [wire, dtype] :
         {std::pair{v1::DTYPE_BF16, DType::kBF16}, std::pair{v1::DTYPE_F32, DType::kF32}}) {
      v1::MatmulRequest request = MatmulOf(golden_.layer, Rows(golden_.x, m));
      request.set_output_dtype(wire);
      v1::MatmulResponse response;
      const grpc::Status status = Matmul(stubs_, request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      ASSERT_EQ(response.y().data().size(), static_cast<size_t>(m * golden_.n) * DTypeBytes(dtype));
      const ComparisonReport report = Compare(response.y(), m, dtype);
      EXPECT_TRUE(report.ok()) << report.ToString();
      std::cout << golden_.name << " M=" << m << " " << DTypeName(dtype) << " "
                << response.info().kernel() << ": " << report.ToString() << "\n";
    }
  }
}

TEST_P(GoldenRpc, StreamGivesTheSameBitsAsUnary) {
  grpc::ClientContext context;
  SetDeadline(context);
  auto stream = stubs_.linear->MatmulStream(&context);
  for (int row = 0; row < 5; ++row) {
    v1::MatmulRequest request = MatmulOf(golden_.layer, golden_.x);
    request.set_request_id(std::to_string(row));
    const size_t row_bytes = golden_.x.data().size() / 5;
    *request.mutable_x() =
        MakeTensor(v1::DTYPE_BF16, {golden_.k},
                   golden_.x.data().substr(static_cast<size_t>(row) * row_bytes, row_bytes));
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  v1::MatmulResponse all;
  const grpc::Status unary = Matmul(stubs_, MatmulOf(golden_.layer, golden_.x), &all);
  ASSERT_TRUE(unary.ok()) << unary.error_message();
  int replies = 0;
  for (v1::MatmulStreamResponse reply; stream->Read(&reply); ++replies) {
    ASSERT_TRUE(reply.has_result()) << reply.error().message();
    const auto row = static_cast<size_t>(std::stoi(reply.request_id()));
    const size_t row_bytes = static_cast<size_t>(golden_.n) * 2;
    ASSERT_EQ(reply.result().y().shape_size(), 1);
    EXPECT_EQ(reply.result().y().data(), all.y().data().substr(row * row_bytes, row_bytes));
  }
  EXPECT_EQ(replies, 5);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(GoldenRpc, DescribeAndListTellTheLayer) {
  grpc::ClientContext list_context;
  SetDeadline(list_context);
  v1::ListResponse list;
  ASSERT_TRUE(stubs_.weights->List(&list_context, {}, &list).ok());
  ASSERT_EQ(list.weights_size(), 1);
  EXPECT_EQ(list.weights(0).name(), golden_.layer);
  EXPECT_EQ(list.weights(0).state(), v1::WEIGHT_STATE_READY);

  grpc::ClientContext context;
  SetDeadline(context);
  v1::DescribeRequest request;
  request.set_name(golden_.layer);
  v1::DescribeResponse described;
  ASSERT_TRUE(stubs_.weights->Describe(&context, request, &described).ok());
  EXPECT_EQ(described.summary().n(), golden_.n);
  EXPECT_EQ(described.summary().k(), golden_.k);
  EXPECT_GT(described.summary().device_bytes(), 0);
  ASSERT_GT(described.kernels_size(), 0);
  EXPECT_EQ(described.kernels(0).m_begin(), 1);
  EXPECT_EQ(described.kernels(described.kernels_size() - 1).m_end(), 4096);
}

INSTANTIATE_TEST_SUITE_P(AllCheckpoints, GoldenRpc, ::testing::ValuesIn(GoldenNames()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace nibble::testing
