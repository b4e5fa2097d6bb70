// Every kernel that can run a matmul, whichever the selector would choose: against the oracle, and
// for the bits that every kernel promises.
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/layer.h"
#include "tests/conformance/params.h"

namespace nibble::conformance {
namespace {

class MatmulCandidatesTest : public ::testing::TestWithParam<BackendAndVariant> {
 protected:
  // Calls `test` for each kernel that can multiply m rows of `input` with the weight, and the
  // runner keeps to it.
  template <class Test>
  void ForEachKernel(const WeightSpec& spec, int64_t m, DType input, Test test) {
    Problem problem;
    problem.weight = spec;
    problem.m = m;
    problem.input = input;
    for (const Choice& choice : MatmulCandidates(problem, runner_.device().info())) {
      SCOPED_TRACE(ToString(choice));
      runner_.set_kernel(choice.kernel);
      test();
    }
    runner_.set_kernel("");
  }

  const Backend backend_ = std::get<0>(GetParam());
  const Variant variant_ = std::get<1>(GetParam());
  Runner runner_{*DevicesOf(backend_)[0]};
};

TEST_P(MatmulCandidatesTest, MatchTheOracle) {
  // Ragged; whole units; many outputs, so that tiles are whole; long rows, so that they are shared.
  constexpr struct { int64_t n, k; } kShapes[] = {{37, 531}, {264, 640}, {4100, 128}, {129, 4096}};
  constexpr DType kOutputs[] = {DType::kF32, DType::kBF16, DType::kF16};
  uint64_t seed = 100;
  for (const auto& [n, k] : kShapes) {
    const WeightSpec spec = variant_.SpecOf(n, k);
    Layer layer(backend_, runner_, RandomWeight(spec, ++seed));
    const int64_t most = n * k > 400000 ? 33 : 130;  // for the oracle's time
    for (const DType input : {DType::kBF16, DType::kF16}) {
      const HostMatrix x = RandomActivations(input, most, k, ++seed);
      const std::vector<double> doubles = ToDoubles(x);
      const std::vector<double> oracle = layer.Oracle(doubles, most);
      for (const int64_t m : {1, 9, 16, 17, 33, 65, 130}) {
        if (m > most) break;
        const DType output = kOutputs[++seed % 3];
        runner_.set_row_padding(m == 33 ? 3 : 0);
        ForEachKernel(spec, m, input,
                      [&] { layer.ExpectOracle({.x = x.Rows(0, m)}, output, doubles, oracle); });
      }
    }
  }
  runner_.set_row_padding(0);
}

TEST_P(MatmulCandidatesTest, RepeatAndKeepRowsApart) {
  constexpr int64_t kN = 140;
  constexpr int64_t kK = 1536;
  const WeightSpec spec = variant_.SpecOf(kN, kK);
  const auto uploaded = runner_.Upload(RandomWeight(spec, 7));
  for (const int64_t m : {16, 40, 70, 140}) {
    const HostMatrix x = RandomActivations(DType::kBF16, m, kK, 8);
    HostMatrix mixed = RandomActivations(DType::kBF16, m, kK, 9);
    for (int64_t row = 0; row < m; row += 3) {
      for (int64_t k = 0; k < kK; ++k) mixed.Set(row, k, x.At(row, k));
    }
    ForEachKernel(spec, m, DType::kBF16, [&] {
      const HostMatrix y = runner_.Matmul(*uploaded, {.x = x}, DType::kF32);
      for (int repeat = 0; repeat < 5; ++repeat) {
        ASSERT_EQ(runner_.Matmul(*uploaded, {.x = x}, DType::kF32), y);
      }
      const HostMatrix other = runner_.Matmul(*uploaded, {.x = mixed}, DType::kF32);
      for (int64_t row = 0; row < m; row += 3) {
        ASSERT_EQ(other.Rows(row, 1), y.Rows(row, 1)) << "M=" << m << " row " << row;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MatmulCandidatesTest,
                         ::testing::Combine(::testing::ValuesIn(AllBackends()),
                                            ::testing::ValuesIn(AllVariants())),
                         NameOf);

}  // namespace
}  // namespace nibble::conformance
