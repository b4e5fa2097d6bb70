// Recording and replaying: an op that is replayed gives the bits of one that is launched.
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/params.h"
#include "tests/conformance/runner.h"

namespace nibble::conformance {
namespace {

std::vector<Backend> BackendsWithGraphs() {
  std::vector<Backend> backends = AllBackends();
  std::erase_if(backends, [](const Backend& backend) { return !backend.graphs; });
  return backends;
}

class GraphWeightTest : public ::testing::TestWithParam<BackendAndVariant> {
 protected:
  const Variant variant_ = std::get<1>(GetParam());
  Runner runner_{*DevicesOf(std::get<0>(GetParam()))[0]};
};

TEST_P(GraphWeightTest, MatmulReplays) {
  // Once a multiple of every tile, once of none. No launch before the recording: what a kernel or a
  // library does at its first call happens within.
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{37, 531}, {144, 512}, {33, 4352}}) {
    const auto weight = runner_.Upload(RandomWeight(variant_.SpecOf(n, k), 1));
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const int64_t m : {1, 9, 33, 70}) {
        if (dtype == DType::kF32 && m > 9) continue;  // one kernel for every M
        SCOPED_TRACE(m);
        const MatmulInput input{.x = RandomActivations(dtype, m, k, 2)};
        runner_.set_replay(true);
        const HostMatrix replayed = runner_.Matmul(*weight, input, DType::kF32);
        runner_.set_replay(false);
        EXPECT_EQ(replayed, runner_.Matmul(*weight, input, DType::kF32));
      }
    }
  }
}

TEST_P(GraphWeightTest, DequantizeReplays) {
  const auto weight = runner_.Upload(RandomWeight(variant_.SpecOf(37, 531), 3));
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    runner_.set_replay(true);
    const HostMatrix replayed = runner_.Dequantize(*weight, 5, 30, dtype);
    runner_.set_replay(false);
    EXPECT_EQ(replayed, runner_.Dequantize(*weight, 5, 30, dtype));
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GraphWeightTest);
INSTANTIATE_TEST_SUITE_P(Backends, GraphWeightTest,
                         ::testing::Combine(::testing::ValuesIn(BackendsWithGraphs()),
                                            ::testing::ValuesIn(AllVariants())),
                         NameOf);

class GraphTest : public ::testing::TestWithParam<Backend> {
 protected:
  Device& device_ = *DevicesOf(GetParam())[0];
  Runner runner_{device_};
};

TEST_P(GraphTest, RowOpsReplay) {
  constexpr QuantMode kModes[] = {QuantMode::kNone, QuantMode::kPerToken, QuantMode::kPerGroup,
                                  QuantMode::kStatic};
  for (const int64_t d : {77, 512, 9000}) {
    for (const QuantMode mode : kModes) {
      SCOPED_TRACE(QuantModeName(mode));
      const NormInput norm{.x = RandomActivations(DType::kBF16, 5, d, 4),
                           .residual = RandomActivations(DType::kBF16, 5, d, 5),
                           .gamma = RandomActivations(DType::kBF16, 1, d, 6),
                           .quant = {mode, 0.02f},
                           .residual_in_place = true};
      const SiluMulInput silu{.x = RandomActivations(DType::kBF16, 5, 2 * d, 7),
                              .quant = {mode, 0.02f}};
      runner_.set_replay(true);
      const RowOpResult norm_replayed = runner_.NormQuant(norm);
      const RowOpResult silu_replayed = runner_.SiluMulQuant(silu);
      runner_.set_replay(false);
      EXPECT_EQ(norm_replayed, runner_.NormQuant(norm));
      EXPECT_EQ(silu_replayed, runner_.SiluMulQuant(silu));
    }
  }
}

// On the kernels for few rows, whose blocks share x: more tiles than blocks, an odd number of them.
TEST_P(GraphTest, FewRowsOfManyOutputsReplay) {
  runner_.set_batch_invariant(true);
  for (const Variant& variant : AllVariants()) {
    if (variant.name != "nf4_nested" && variant.name != "int4_group_32_zp") continue;
    for (const int64_t k : {512, 4352}) {
      SCOPED_TRACE(k);
      const auto weight = runner_.Upload(RandomWeight(variant.SpecOf(4300, k), 11));
      for (const int64_t m : {1, 9, 16}) {
        const MatmulInput input{.x = RandomActivations(DType::kBF16, m, k, 12)};
        runner_.set_replay(true);
        const HostMatrix replayed = runner_.Matmul(*weight, input, DType::kF32);
        runner_.set_replay(false);
        EXPECT_EQ(replayed, runner_.Matmul(*weight, input, DType::kF32)) << m;
      }
    }
  }
}

TEST_P(GraphTest, QuantizedActivationsReplay) {
  for (const Variant& variant : Fp8Variants()) {
    SCOPED_TRACE(variant.name);
    const auto weight = runner_.Upload(RandomWeight(variant.SpecOf(37, 300), 8));
    for (const QuantMode mode : {QuantMode::kPerToken, QuantMode::kPerGroup, QuantMode::kStatic}) {
      const MatmulInput input{.x = RandomActivations(DType::kBF16, 9, 300, 9),
                              .activation = mode,
                              .static_scale = 0.02f};
      runner_.set_replay(true);
      const HostMatrix replayed = runner_.Matmul(*weight, input, DType::kBF16);
      runner_.set_replay(false);
      EXPECT_EQ(replayed, runner_.Matmul(*weight, input, DType::kBF16));
    }
  }
}

// As a server does it: rows in through staging memory, marks around the op, results out; the same
// graph for ever new rows.
TEST_P(GraphTest, EveryReplayReadsTheRowsOfThen) {
  constexpr int64_t kM = 4, kN = 67, kK = 512;
  constexpr size_t kXBytes = kM * kK * 2, kYBytes = kM * kN * 4;
  Variant variant = AllVariants()[0];
  variant.spec.format = Format::kNF4;
  const auto weight = runner_.Upload(RandomWeight(variant.SpecOf(kN, kK), 10));
  const auto staging = device_.Allocate(kXBytes + kYBytes, MemoryKind::kStaging).value();
  const auto memory = device_.Allocate(kXBytes + kYBytes, MemoryKind::kDevice).value();
  auto* host = static_cast<std::byte*>(staging->data());
  auto* there = static_cast<std::byte*>(memory->data());
  Problem problem;
  problem.weight = weight->spec();
  problem.m = kM;
  problem.output = DType::kF32;
  const Choice choice = runner_.ChoiceFor(problem);
  const auto workspace =
      device_.Allocate(device_.WorkspaceBytes(problem, choice), MemoryKind::kDevice).value();
  MatmulArgs args;
  args.weight = weight.get();
  args.x = MakeConstView(there, DType::kBF16, kM, kK);
  args.y = MakeView(there + kXBytes, DType::kF32, kM, kN);
  Stream& stream = runner_.stream();

  ASSERT_TRUE(stream.BeginCapture().ok());
  EXPECT_FALSE(stream.BeginCapture().ok());
  EXPECT_TRUE(stream.Copy(there, host, kXBytes).ok());
  EXPECT_TRUE(stream.Mark(0).ok());
  EXPECT_TRUE(device_.Matmul(args, choice, workspace->data(), stream).ok());
  EXPECT_TRUE(stream.Mark(1).ok());
  EXPECT_TRUE(stream.Copy(host + kXBytes, there + kXBytes, kYBytes).ok());
  auto graph = stream.EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_FALSE(stream.EndCapture().ok());
  // Nothing has run: the marks have not been set.
  EXPECT_FALSE(stream.MicrosecondsBetween(0, 1).ok());

  for (uint64_t seed = 11; seed < 15; ++seed) {
    const HostMatrix x = RandomActivations(DType::kBF16, kM, kK, seed);
    std::memcpy(host, x.bytes.data(), kXBytes);
    std::memset(host + kXBytes, 0xFF, kYBytes);
    ASSERT_TRUE(stream.Launch(**graph).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
    HostMatrix y(DType::kF32, kM, kN);
    std::memcpy(y.bytes.data(), host + kXBytes, kYBytes);
    const auto elapsed = stream.MicrosecondsBetween(0, 1);
    ASSERT_TRUE(elapsed.ok()) << elapsed.status();
    EXPECT_GT(*elapsed, 0.0);
    EXPECT_EQ(y, runner_.Matmul(*weight, {.x = x}, DType::kF32));
  }
}

// Kernels may start before those in front of them are done, but not read what these have not
// written.
TEST_P(GraphTest, AChainOfMatmulsReadsWhatTheOneBeforeWrote) {
  constexpr int kLayers = 12;
  for (const Variant& variant : AllVariants()) {
    if (variant.name != "nf4_nested" && variant.name != "int4_group_128" &&
        variant.name != "fp8_channel_bias") {
      continue;
    }
    for (const auto& [size, m] : {std::pair<int64_t, int64_t>{640, 1},
                                  {640, 4},
                                  {640, 8},
                                  {640, 16},
                                  {4352, 1},
                                  {4352, 16}}) {
      SCOPED_TRACE(variant.name + " K=" + std::to_string(size) + " M=" + std::to_string(m));
      const auto weight = runner_.Upload(RandomWeight(variant.SpecOf(size, size), 20));
      const HostMatrix x = RandomActivations(DType::kBF16, m, size, 21);
      HostMatrix expected = x;
      for (int layer = 0; layer < kLayers; ++layer) {
        expected = runner_.Matmul(*weight, {.x = expected}, DType::kBF16);
      }
      Problem problem;
      problem.weight = weight->spec();
      problem.m = m;
      const Choice choice = runner_.ChoiceFor(problem);
      const auto workspace =
          device_.Allocate(device_.WorkspaceBytes(problem, choice), MemoryKind::kDevice).value();
      const Runner::Input rows[2] = {runner_.Put(x), runner_.Put(x)};
      ASSERT_TRUE(runner_.stream().BeginCapture().ok());
      for (int layer = 0; layer < kLayers; ++layer) {
        MatmulArgs args;
        args.weight = weight.get();
        args.x = rows[layer % 2].view;
        args.y = MakeView(rows[(layer + 1) % 2].buffer->data(), DType::kBF16, m, size);
        ASSERT_TRUE(device_.Matmul(args, choice, workspace->data(), runner_.stream()).ok());
      }
      auto graph = runner_.stream().EndCapture();
      ASSERT_TRUE(graph.ok()) << graph.status();
      ASSERT_TRUE(runner_.stream().Launch(**graph).ok());
      const HostMatrix received = runner_.Get(rows[kLayers % 2]);
      EXPECT_EQ(received, expected);
    }
  }
}

// What one thread records is not disturbed by what another allocates, uploads and launches.
TEST_P(GraphTest, RecordsWhileAnotherThreadWorks) {
  constexpr int kRounds = 30;
  const CanonicalWeight canonical = RandomWeight(AllVariants()[3].SpecOf(67, 531), 18);
  const auto weight = runner_.Upload(canonical);
  const MatmulInput input{.x = RandomActivations(DType::kBF16, 9, 531, 19)};
  const HostMatrix expected = runner_.Matmul(*weight, input, DType::kF32);
  std::thread other([&] {
    Runner runner(device_);
    for (int i = 0; i < kRounds; ++i) {
      const auto own = runner.Upload(canonical);
      EXPECT_EQ(runner.Matmul(*own, input, DType::kF32), expected);
    }
  });
  runner_.set_replay(true);
  for (int i = 0; i < kRounds; ++i) {
    EXPECT_EQ(runner_.Matmul(*weight, input, DType::kF32), expected);
  }
  other.join();
}

TEST_P(GraphTest, AnOpThatFailsWhileRecordingLeavesAUsableStream) {
  ASSERT_TRUE(runner_.stream().BeginCapture().ok());
  EXPECT_FALSE(device_.Matmul({}, {}, nullptr, runner_.stream()).ok());
  EXPECT_TRUE(runner_.stream().EndCapture().ok());
  const auto weight = runner_.Upload(RandomWeight(AllVariants()[0].SpecOf(7, 31), 16));
  const HostMatrix x = RandomActivations(DType::kF32, 3, 31, 17);
  EXPECT_EQ(runner_.Matmul(*weight, {.x = x}, DType::kF32),
            runner_.Matmul(*weight, {.x = x}, DType::kF32));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GraphTest);
INSTANTIATE_TEST_SUITE_P(Backends, GraphTest, ::testing::ValuesIn(BackendsWithGraphs()),
                         ::testing::PrintToStringParamName());

class NoGraphTest : public ::testing::TestWithParam<Backend> {};

TEST_P(NoGraphTest, ADeviceWithoutGraphsSaysSo) {
  Runner runner(*DevicesOf(GetParam())[0]);
  const Status began = runner.stream().BeginCapture();
  EXPECT_EQ(absl::IsUnimplemented(began), !GetParam().graphs) << began;
  EXPECT_EQ(absl::IsUnimplemented(runner.stream().EndCapture().status()), !GetParam().graphs);
}

INSTANTIATE_TEST_SUITE_P(Backends, NoGraphTest, ::testing::ValuesIn(AllBackends()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace nibble::conformance
