// Rows of INT4 with one scale in 128 inputs that keep their bits in any batch: a GPU multiplies few
// rows by a GEMV and more by pairs of blocks, or, of many outputs, by tiles of one block, which add
// K in the same order (core::ChainsOf), in turns of four units of a chain.
#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/weights.h"

namespace nibble::conformance {
namespace {

struct Scales {
  std::string name;
  DType type = DType::kF16;
  bool zero_points = false;
};

std::ostream& operator<<(std::ostream& out, const Scales& scales) { return out << scales.name; }

constexpr int64_t kGroup = 128;

// Halves of K of four, two and one chains, and one chain of all. Units of K: a half without one,
// fewer than chains, the end of a half in the first, second, third and last unit of a turn, in the
// first turn and later, in the same turn of both halves and not.
struct Outputs {
  int64_t n;
  std::vector<int64_t> units;
};

std::vector<Outputs> AllOutputs() {
  return {{37, {1, 2, 5, 9, 15, 24, 31, 33, 38, 43, 47, 65, 78, 97}},
          {4250, {1, 2, 7, 12, 16, 17, 19, 27}},
          {8500, {1, 3, 5, 9, 13}},
          // One chain: whole turns, one and several, and not; more tiles than multiprocessors.
          {16900, {4, 7, 8, 12}},
          {33900, {4}}};
}

CanonicalWeight MakeWeight(const Scales& scales, int64_t n, int64_t k) {
  WeightSpec spec;
  spec.format = Format::kInt4;
  spec.n = n;
  spec.k = k;
  spec.group_size = kGroup;
  spec.scale_dtype = scales.type;
  spec.has_zero_points = scales.zero_points;
  return RandomWeight(spec, static_cast<uint64_t>(n + k));
}

using BackendAndScales = std::tuple<Backend, Scales>;

class MatmulOrderTest : public ::testing::TestWithParam<BackendAndScales> {
 protected:
  Runner runner_{*DevicesOf(std::get<0>(GetParam()))[0]};
};

TEST_P(MatmulOrderTest, RowsOfAnyBatchAreEqual) {
  constexpr int64_t kRows = 66;
  runner_.set_batch_invariant(true);
  for (const auto& [n, all_units] : AllOutputs()) {
    for (const int64_t units : all_units) {
      // Some that are not whole units.
      const int64_t k = units * kGroup - (units % 3 == 0 ? 24 : 0);
      SCOPED_TRACE(fmt::format("{}x{}", n, k));
      const auto weight = runner_.Upload(MakeWeight(std::get<1>(GetParam()), n, k));
      const HostMatrix x = RandomActivations(DType::kBF16, kRows, k, 51);
      const HostMatrix y = runner_.Matmul(*weight, {.x = x}, DType::kF32);
      for (const int64_t m : {1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64}) {
        const int64_t first = (kRows - m) / 2;
        const HostMatrix part = runner_.Matmul(*weight, {.x = x.Rows(first, m)}, DType::kF32);
        ASSERT_EQ(part, y.Rows(first, m)) << "M = " << m;
      }
    }
  }
}

const Scales kAllScales[] = {{"f16"},
                             {"bf16", DType::kBF16},
                             {"f16_zp", DType::kF16, true},
                             {"bf16_zp", DType::kBF16, true}};

std::string NameOfScales(const ::testing::TestParamInfo<BackendAndScales>& param) {
  return std::get<0>(param.param).name + "_" + std::get<1>(param.param).name;
}

INSTANTIATE_TEST_SUITE_P(Backends, MatmulOrderTest,
                         ::testing::Combine(::testing::ValuesIn(AllBackends()),
                                            ::testing::ValuesIn(kAllScales)),
                         NameOfScales);

}  // namespace
}  // namespace nibble::conformance
