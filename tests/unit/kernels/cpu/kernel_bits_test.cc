// What the CPU backend promises beyond the contract: the bits of a result depend neither on the
// kernel nor on the number of threads.
#include <algorithm>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "nibble/backend.h"
#include "tests/conformance/weights.h"

namespace nibble {
namespace {

using conformance::HostMatrix;

StatusOr<std::vector<std::unique_ptr<Device>>> Create(int threads) {
  CpuOptions options;
  options.threads = threads;
  options.memory_bytes = uint64_t{64} << 20;
  options.measure_bandwidth = false;
  return CreateCpuDevices(options);
}

HostMatrix Matmul(Device& device, const CanonicalWeight& weight, const HostMatrix& x,
                  std::string_view kernel) {
  const WeightSpec& spec = weight.spec;
  HostMatrix y(DType::kF32, x.rows, spec.n);
  const auto uploaded = device.Upload(weight, nullptr);
  const auto stream = device.CreateStream();
  EXPECT_TRUE(uploaded.ok() && stream.ok());
  Problem problem;
  problem.weight = spec;
  problem.m = x.rows;
  Choice choice = Select(problem, device.info());
  choice.kernel = kernel;
  const auto workspace =
      device.Allocate(device.WorkspaceBytes(problem, choice), MemoryKind::kDevice);
  EXPECT_TRUE(workspace.ok());
  MatmulArgs args;
  args.weight = uploaded->get();
  args.x = x.view();
  args.y = MakeView(y.bytes.data(), DType::kF32, x.rows, spec.n);
  const Status status = device.Matmul(args, choice, (*workspace)->data(), **stream);
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

TEST(CpuKernelBitsTest, DependNeitherOnTheKernelNorOnTheThreads) {
  const auto one = Create(1);
  const auto four = Create(4);
  ASSERT_TRUE(one.ok() && four.ok());
  for (const conformance::Variant& variant : conformance::AllVariants()) {
    SCOPED_TRACE(variant.name);
    const CanonicalWeight weight = conformance::RandomWeight(variant.SpecOf(211, 1100), 1);
    for (const int64_t m : {1, 6, 130}) {
      const HostMatrix x = conformance::RandomActivations(DType::kBF16, m, 1100, 2);
      const HostMatrix expected = Matmul(*(*one)[0], weight, x, "cpu_gemv");
      EXPECT_EQ(Matmul(*(*one)[0], weight, x, "cpu_gemm"), expected) << m;
      EXPECT_EQ(Matmul(*(*four)[0], weight, x, "cpu_gemv"), expected) << m;
      EXPECT_EQ(Matmul(*(*four)[0], weight, x, "cpu_gemm"), expected) << m;
    }
  }
}

// The codes of `whole` by tiles of one size.
class TileSource final : public CodeSource {
 public:
  TileSource(const CanonicalWeight& whole, int64_t rows, int64_t inputs)
      : whole_(whole), rows_(rows), inputs_(inputs) {}

  CodeTile PreferredTile() const override { return {.rows = rows_, .inputs = inputs_}; }
  void Read(const CodeTile& tile, std::byte* out, int64_t stride) const override {
    const WeightSpec& spec = whole_.spec;
    EXPECT_TRUE(tile.row % 32 == 0 && tile.k % 32 == 0);
    EXPECT_TRUE(tile.rows % 32 == 0 || tile.row + tile.rows == spec.n);
    EXPECT_TRUE(tile.inputs % 32 == 0 || tile.k + tile.inputs == spec.k);
    for (int64_t i = 0; i < tile.rows; ++i) {
      std::copy_n(whole_.codes.data() + (tile.row + i) * CeilDiv(spec.k, 2) + tile.k / 2,
                  CeilDiv(tile.inputs, 2), out + i * stride);
    }
  }
  HostBytes ReadAll() const override { return whole_.codes; }

 private:
  const CanonicalWeight whole_;
  const int64_t rows_;
  const int64_t inputs_;
};

TEST(CpuKernelBitsTest, DoNotDependOnHowCodesAreHandedOver) {
  const auto devices = Create(1);
  ASSERT_TRUE(devices.ok());
  for (const conformance::Variant& variant : conformance::AllVariants()) {
    if (variant.spec.format != Format::kInt4) continue;
    SCOPED_TRACE(variant.name);
    for (const int64_t k : {64, 1100, 1101, 1344}) {
      const CanonicalWeight whole = conformance::RandomWeight(variant.SpecOf(211, k), 1);
      const HostMatrix x = conformance::RandomActivations(DType::kBF16, 2, k, 2);
      const HostMatrix expected = Matmul(*(*devices)[0], whole, x, "cpu_gemv");
      for (const auto& [rows, inputs] : {std::pair(32, 32), std::pair(96, 512), {512, 4096}}) {
        CanonicalWeight weight = whole;
        weight.codes = HostBytes();
        weight.code_source = std::make_shared<TileSource>(whole, rows, inputs);
        EXPECT_EQ(Matmul(*(*devices)[0], weight, x, "cpu_gemv"), expected) << k << ", " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace nibble
