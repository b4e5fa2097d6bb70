// Sizes past 2^31 elements and past 65,535 rows: for devices that have the memory.
#include <cstring>
#include <numeric>
#include <span>

#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/reference.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/weights.h"
#include "tests/support/tolerance.h"

namespace nibble::conformance {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// `row_bytes` of random data for each of `rows`, cut out of one block from even offsets on: as fast
// as memory is.
HostBytes ManyRows(const std::vector<std::byte>& block, int64_t rows, int64_t row_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes));
  const int64_t starts = static_cast<int64_t>(block.size()) - row_bytes;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(bytes.data() + row * row_bytes, block.data() + row * 7918 % starts / 2 * 2,
                static_cast<size_t>(row_bytes));
  }
  return HostBytes(std::move(bytes));
}

class LargeTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    const MemoryUse use = device_.memory();
    const uint64_t free_bytes = use.total_bytes - use.used_bytes;
    if (free_bytes < 16 * kGiB) {
      GTEST_SKIP() << "needs 16 GiB of free device memory; there are " << free_bytes << " bytes";
    }
  }

  // Copy one row, row_bytes long, of a matrix on the device.
  void PutRow(const void* from, std::byte* matrix, int64_t row, size_t row_bytes) {
    auto staging = device_.Allocate(row_bytes, MemoryKind::kStaging).value();
    std::memcpy(staging->data(), from, row_bytes);
    ASSERT_TRUE(
        stream_->Copy(matrix + row * static_cast<int64_t>(row_bytes), staging->data(), row_bytes)
            .ok());
    ASSERT_TRUE(stream_->Synchronize().ok());
  }
  void GetRow(const std::byte* matrix, int64_t row, size_t row_bytes, void* to) {
    auto staging = device_.Allocate(row_bytes, MemoryKind::kStaging).value();
    ASSERT_TRUE(
        stream_->Copy(staging->data(), matrix + row * static_cast<int64_t>(row_bytes), row_bytes)
            .ok());
    ASSERT_TRUE(stream_->Synchronize().ok());
    std::memcpy(to, staging->data(), row_bytes);
  }
  std::unique_ptr<Buffer> DeviceMemory(uint64_t bytes) {
    auto buffer = device_.Allocate(bytes, MemoryKind::kDevice);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : nullptr;
  }
  Choice Prepare(const Problem& problem) {
    const Choice choice = Select(problem, device_.info());
    workspace_ = DeviceMemory(std::max<uint64_t>(device_.WorkspaceBytes(problem, choice), 1));
    return choice;
  }

  Device& device_ = *DevicesOf(GetParam())[0];
  Runner runner_{device_};
  std::unique_ptr<Stream> stream_ = device_.CreateStream().value();
  std::unique_ptr<Buffer> workspace_;
};

TEST_P(LargeTest, AWeightOfMoreThanTwoToThe31Elements) {
  constexpr int64_t kN = 65536, kK = 40960, kGroup = 128;
  static_assert(kN * kK > int64_t{1} << 31);
  CanonicalWeight weight;
  weight.spec.format = Format::kInt4;
  weight.spec.n = kN;
  weight.spec.k = kK;
  weight.spec.group_size = kGroup;
  weight.spec.scale_dtype = DType::kF16;
  Random random(1);
  std::vector<std::byte> codes(1 << 20);
  for (std::byte& byte : codes) byte = static_cast<std::byte>(random.Bits() & 0xFF);
  HostMatrix scales(DType::kF16, 1, 1 << 16);
  for (int64_t i = 0; i < scales.cols; ++i) scales.Set(0, i, random.Uniform(0.002f, 0.02f));
  weight.codes = ManyRows(codes, kN, kK / 2);
  weight.scales = ManyRows(scales.bytes, kN, kK / kGroup * 2);
  const auto uploaded = runner_.Upload(weight);
  ASSERT_NE(uploaded, nullptr);

  // Rows around every border: of 2^31 elements and bytes, the first and the last.
  const int64_t border = (int64_t{1} << 31) / kK;
  std::vector<int64_t> rows = {0,      1,          15,      border / 2, border - 1,
                               border, border + 1, kN - 17, kN - 1};
  HostMatrix decoded(DType::kF32, static_cast<int64_t>(rows.size()), kK);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<float> row(reinterpret_cast<float*>(decoded.bytes.data()) + i * kK, kK);
    ASSERT_TRUE(DecodeReference(weight, rows[i], 1, row).ok());
  }

  {
    SCOPED_TRACE("dequantize");
    const auto out = DeviceMemory(kN * kK * 4);
    ASSERT_NE(out, nullptr);
    Problem problem;
    problem.op = Op::kDequantize;
    problem.weight = weight.spec;
    problem.m = kN;
    problem.output = DType::kF32;
    const Choice choice = Prepare(problem);
    DequantizeArgs args;
    args.weight = uploaded.get();
    args.out = MakeView(out->data(), DType::kF32, kN, kK);
    ASSERT_TRUE(device_.Dequantize(args, choice, workspace_->data(), *stream_).ok());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<std::byte> row(kK * 4);
      GetRow(static_cast<const std::byte*>(out->data()), rows[i], row.size(), row.data());
      EXPECT_EQ(std::memcmp(row.data(), decoded.bytes.data() + i * row.size(), row.size()), 0)
          << "row " << rows[i];
    }
  }
  const std::vector<double> w_norms = RowNorms(ToDoubles(decoded), decoded.rows);
  for (const int64_t m : {1, 9, 70}) {
    SCOPED_TRACE(m);
    const HostMatrix x = RandomActivations(DType::kBF16, m, kK, 2);
    const HostMatrix y = runner_.Matmul(*uploaded, {.x = x}, DType::kF32);
    HostMatrix sampled(DType::kF32, m, static_cast<int64_t>(rows.size()));
    for (int64_t row = 0; row < m; ++row) {
      for (size_t i = 0; i < rows.size(); ++i) {
        sampled.Set(row, static_cast<int64_t>(i), y.At(row, rows[i]));
      }
    }
    const std::vector<double> doubles = ToDoubles(x);
    const testing::ComparisonReport report =
        testing::CompareMatmul(sampled.view(), MatmulOracle(doubles, m, decoded, {}),
                               RowNorms(doubles, m), w_norms, kK, GetParam().error_model);
    EXPECT_TRUE(report.ok()) << report.ToString();
  }
}

TEST_P(LargeTest, ResultsOfMoreThanTwoToThe31Elements) {
  constexpr int64_t kM = 70000, kN = 32768, kK = 64;
  static_assert(kM * kN > int64_t{1} << 31);
  WeightSpec spec;
  spec.format = Format::kNF4;
  spec.n = kN;
  spec.k = kK;
  const CanonicalWeight weight = RandomWeight(spec, 3);
  const HostMatrix decoded = Decode(weight);
  const auto uploaded = runner_.Upload(weight);
  const HostMatrix x = RandomActivations(DType::kBF16, kM, kK, 4);
  const Runner::Input there = runner_.Put(x);
  const auto y = DeviceMemory(kM * kN * 2);
  ASSERT_NE(y, nullptr);
  Problem problem;
  problem.weight = spec;
  problem.m = kM;
  const Choice choice = Prepare(problem);
  MatmulArgs args;
  args.weight = uploaded.get();
  args.x = there.view;
  args.y = MakeView(y->data(), DType::kBF16, kM, kN);
  ASSERT_TRUE(device_.Matmul(args, choice, workspace_->data(), *stream_).ok());
  const std::vector<double> w_norms = RowNorms(ToDoubles(decoded), kN);
  for (const int64_t row : {int64_t{0}, int64_t{65535}, int64_t{65536}, kM - 1}) {
    SCOPED_TRACE(row);
    HostMatrix received(DType::kBF16, 1, kN);
    GetRow(static_cast<const std::byte*>(y->data()), row, received.bytes.size(),
           received.bytes.data());
    const std::vector<double> doubles = ToDoubles(x.Rows(row, 1));
    const testing::ComparisonReport report =
        testing::CompareMatmul(received.view(), MatmulOracle(doubles, 1, decoded, {}),
                               RowNorms(doubles, 1), w_norms, kK, GetParam().error_model);
    EXPECT_TRUE(report.ok()) << report.ToString();
  }
}

// Rows are independent: those in between stay what the memory held.
TEST_P(LargeTest, RowOpsOfMoreThanTwoToThe31Elements) {
  constexpr int64_t kM = 70000, kD = 32768;
  static_assert(kM * kD > int64_t{1} << 31);
  const std::vector<int64_t> rows = {0, 65535, 65536, kM - 1};
  const HostMatrix x = RandomActivations(DType::kBF16, 4, kD, 5);
  const HostMatrix gamma = RandomActivations(DType::kBF16, 1, kD, 6);
  const OutputQuant quant{QuantMode::kPerToken, 1.0f};
  const auto in = DeviceMemory(kM * kD * 2);
  const auto out = DeviceMemory(kM * kD);
  const auto scales = DeviceMemory(kM * 4);
  ASSERT_TRUE(in != nullptr && out != nullptr && scales != nullptr);
  auto* from = static_cast<std::byte*>(in->data());
  for (size_t i = 0; i < rows.size(); ++i) {
    PutRow(x.bytes.data() + i * kD * 2, from, rows[i], kD * 2);
  }
  const auto expect = [&](const RowOpResult& expected) {
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(rows[i]);
      const auto columns = static_cast<size_t>(expected.y.cols);
      std::vector<std::byte> row(columns);
      GetRow(static_cast<const std::byte*>(out->data()), rows[i], columns, row.data());
      EXPECT_EQ(std::memcmp(row.data(), expected.y.bytes.data() + i * columns, columns), 0);
      float scale = 0.0f;
      GetRow(static_cast<const std::byte*>(scales->data()), rows[i], sizeof(scale), &scale);
      EXPECT_EQ(scale, expected.scales.At(static_cast<int64_t>(i), 0));
    }
  };
  {
    SCOPED_TRACE("norm_quant");
    const Runner::Input there = runner_.Put(gamma);
    Problem problem;
    problem.op = Op::kNormQuant;
    problem.m = kM;
    problem.d = kD;
    problem.output = DType::kF8E4M3;
    problem.quant = quant.mode;
    NormQuantArgs args;
    args.x = MakeConstView(from, DType::kBF16, kM, kD);
    args.gamma = there.view;
    args.quant = quant;
    args.y = MakeView(out->data(), DType::kF8E4M3, kM, kD);
    args.scales = MakeView(scales->data(), DType::kF32, kM, 1);
    const Choice choice = Prepare(problem);
    ASSERT_TRUE(device_.NormQuant(args, choice, workspace_->data(), *stream_).ok());
    expect(runner_.NormQuant({.x = x, .gamma = gamma, .quant = quant}));
  }
  {
    SCOPED_TRACE("silu_mul_quant");
    constexpr int64_t kHalf = kD / 2;
    Problem problem;
    problem.op = Op::kSiluMulQuant;
    problem.m = kM;
    problem.d = kHalf;
    problem.output = DType::kF8E4M3;
    problem.quant = quant.mode;
    SiluMulQuantArgs args;
    args.x = MakeConstView(from, DType::kBF16, kM, kD);
    args.quant = quant;
    args.y = MakeView(out->data(), DType::kF8E4M3, kM, kHalf);
    args.scales = MakeView(scales->data(), DType::kF32, kM, 1);
    const Choice choice = Prepare(problem);
    ASSERT_TRUE(device_.SiluMulQuant(args, choice, workspace_->data(), *stream_).ok());
    expect(runner_.SiluMulQuant({.x = x, .quant = quant}));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LargeTest, ::testing::ValuesIn(AllBackends()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace nibble::conformance
