// What the CPU backend promises beyond the contract: the bits of a result depend neither on the
// kernel nor on the number of threads.
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

}  // namespace
}  // namespace nibble
