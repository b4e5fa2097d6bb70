// Matmuls that are large enough for every way in which cuda_wgmma divides them, compared with the
// device's binary32 kernel, which smaller tests compare with the oracle: the oracle would take
// minutes. Devices without these kernels skip the tests.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/reference.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/weights.h"
#include "tests/support/tolerance.h"

namespace nibble::conformance {
namespace {

constexpr const char* kTiles = "cuda_wgmma";
constexpr const char* kExact = "cuda_gemm_f32";

// A weight by its variant, and what INT4 changes in that.
struct TileWeight {
  std::string name;
  std::string variant;
  int64_t group_size = 0;
  DType scales = DType::kF16;
  bool zero_points = false;
  int scale_exponent = 0;  // of BF16 scales: they are multiplied by 2 to this power
  int64_t ragged = 0;      // inputs that K may lack to whole units of 128
};

std::vector<TileWeight> TileWeights() {
  const std::string int4 = "int4_group_128";
  return {{"int4", int4, 128, DType::kF16, false, 0, 24},
          {"int4_bf16", int4, 128, DType::kBF16, false, 0, 24},
          {"int4_large", int4, 128, DType::kBF16, false, 110, 24},
          {"int4_small", int4, 128, DType::kBF16, false, -110, 24},
          {"int4_zp", int4, 128, DType::kF16, true, 0, 24},
          {"int4_zp_bf16", int4, 128, DType::kBF16, true, 0, 24},
          {"int4_group_64", int4, 64, DType::kBF16, false, 0, 24},
          {"int4_group_64_zp", int4, 64, DType::kF16, true, 0, 24},
          {"int4_group_32", int4, 32, DType::kF16, false, 0, 24},
          {"int4_group_32_zp", int4, 32, DType::kBF16, true, 0, 24},
          {"nf4", "nf4", 0, DType::kF16, false, 0, 64},
          {"fp4_block_128", "fp4_nested"}};
}

std::ostream& operator<<(std::ostream& out, const TileWeight& weight) { return out << weight.name; }

CanonicalWeight MakeWeight(const TileWeight& tile_weight, int64_t n, int64_t k) {
  const std::vector<Variant> variants = AllVariants();
  const auto variant = std::ranges::find(variants, tile_weight.variant, &Variant::name);
  WeightSpec spec = variant->SpecOf(n, k - tile_weight.ragged);
  if (tile_weight.group_size > 0) {
    spec.group_size = tile_weight.group_size;
    spec.scale_dtype = tile_weight.scales;
    spec.has_zero_points = tile_weight.zero_points;
  }
  CanonicalWeight weight = RandomWeight(spec, static_cast<uint64_t>(n + k));
  if (tile_weight.scale_exponent != 0) {
    std::vector<std::byte> bytes(weight.scales.data(), weight.scales.data() + weight.scales.size());
    for (size_t i = 0; i < bytes.size(); i += 2) {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + i, 2);
      bits = static_cast<uint16_t>(bits + tile_weight.scale_exponent * 128);
      std::memcpy(bytes.data() + i, &bits, 2);
    }
    weight.scales = HostBytes(std::move(bytes));
  }
  return weight;
}

using BackendAndWeight = std::tuple<Backend, TileWeight>;

class MatmulTilesTest : public ::testing::TestWithParam<BackendAndWeight> {
 protected:
  void SetUp() override {
    Problem problem;
    problem.weight = MakeWeight(weight_, 16, 256).spec;
    problem.m = 64;
    problem.input = DType::kBF16;
    const std::vector<Choice> candidates = MatmulCandidates(problem, runner_.device().info());
    for (const char* kernel : {kTiles, kExact}) {
      if (std::ranges::find(candidates, kernel, &Choice::kernel) == candidates.end()) {
        GTEST_SKIP() << "the device has no " << kernel;
      }
    }
  }

  void SetRowPadding(int64_t elements) { runner_.set_row_padding(elements); }
  // Rows of BF16 x. k: a multiple of 128, of which the weight may lack some.
  void Compare(int64_t n, int64_t k, const std::vector<int64_t>& rows) {
    const CanonicalWeight weight = MakeWeight(weight_, n, k);
    const auto uploaded = runner_.Upload(weight);
    const std::vector<double> w_norms = NormsOf(weight);
    const HostMatrix x = RandomActivations(DType::kBF16, std::ranges::max(rows), weight.spec.k, 60);
    runner_.set_kernel(kExact);
    const HostMatrix exact = runner_.Matmul(*uploaded, {.x = x}, DType::kF32);
    const std::vector<double> y64 = ToDoubles(exact);
    const std::vector<double> x_norms = RowNorms(ToDoubles(x), x.rows);
    runner_.set_kernel(kTiles);
    for (const int64_t m : rows) {
      const auto elements = static_cast<size_t>(m);
      const DType output = m % 2 == 0 ? DType::kBF16 : DType::kF32;
      const HostMatrix y = runner_.Matmul(*uploaded, {.x = x.Rows(0, m)}, output);
      const testing::ComparisonReport report =
          testing::CompareMatmul(y.view(), std::span(y64).first(elements * static_cast<size_t>(n)),
                                 std::vector(x_norms.begin(), x_norms.begin() + m), w_norms,
                                 weight.spec.k, backend_.error_model);
      EXPECT_TRUE(report.ok()) << "M=" << m << " N=" << n << " K=" << weight.spec.k << ": "
                               << report.ToString();
      EXPECT_EQ(runner_.Matmul(*uploaded, {.x = x.Rows(0, m)}, output), y) << "M=" << m;
    }
    runner_.set_kernel("");
  }

 private:
  static std::vector<double> NormsOf(const CanonicalWeight& weight) {
    constexpr int64_t kRows = 64;  // of whole blocks of table formats
    const int64_t k = weight.spec.k;
    std::vector<float> decoded(static_cast<size_t>(kRows * k));
    std::vector<double> norms;
    for (int64_t row = 0; row < weight.spec.n; row += kRows) {
      const int64_t count = std::min(kRows, weight.spec.n - row);
      const auto elements = static_cast<size_t>(count * k);
      EXPECT_TRUE(DecodeReference(weight, row, count, std::span(decoded).first(elements)).ok());
      for (int64_t i = 0; i < count; ++i) {
        double sum = 0.0;
        for (int64_t j = 0; j < k; ++j) {
          const double value = decoded[static_cast<size_t>(i * k + j)];
          sum += value * value;
        }
        norms.push_back(std::sqrt(sum));
      }
    }
    return norms;
  }

  const Backend backend_ = std::get<0>(GetParam());
  const TileWeight weight_ = std::get<1>(GetParam());
  Runner runner_{*DevicesOf(backend_)[0]};
};

// Tiles of one block each, of whole turns of the loop: every number of columns, at its borders.
TEST_P(MatmulTilesTest, WholeTilesOfWholeTurns) {
  Compare(22700, 1024, {16, 17, 32, 33, 64, 65, 128, 129});
}

// The same of other lengths, and several a block.
TEST_P(MatmulTilesTest, SeveralTilesABlock) {
  Compare(34000, 512, {9, 32, 50});
  Compare(34000, 384, {16, 31, 64, 100});
}

// Tiles of three warpgroups, in turns and not.
TEST_P(MatmulTilesTest, NarrowTiles) {
  Compare(22500, 1024, {16, 17, 33, 64});
  Compare(17000, 384, {9, 32, 50});
}

TEST_P(MatmulTilesTest, SharedTiles) {
  Compare(18000, 640, {66, 128});
  Compare(8460, 4096, {40});
}

// Rows of x that are multiples of 16 bytes, but not beside each other, and so of y.
TEST_P(MatmulTilesTest, RowsApart) {
  SetRowPadding(8);
  Compare(22700, 512, {17});
  Compare(1000, 1024, {33});
}

// Pairs of blocks of 64, 128 and 256 outputs, rings that are used several times, whole turns and
// parts of one, fewer units of K than warpgroups.
TEST_P(MatmulTilesTest, Pairs) {
  Compare(1000, 4096, {16, 17, 33, 65, 128});
  Compare(1000, 6400, {9, 32, 64});
  Compare(1000, 256, {16, 17, 33});
  Compare(4230, 2176, {16, 17, 33, 65, 128});
  Compare(4230, 4992, {16, 32});
  Compare(8460, 2944, {16});
  Compare(8460, 2176, {32, 64});
  Compare(8460, 1152, {9, 17, 33, 66, 128});
  Compare(4096, 3712, {256});
}

// 256 rows a tile: whole tiles, some halved, rows past the last 256; halves alone.
TEST_P(MatmulTilesTest, WideTiles) {
  Compare(8711, 384, {257, 513});
  Compare(1000, 640, {800, 1000});
}

std::vector<Backend> CudaBackends() {
  std::vector<Backend> backends = AllBackends();
  std::erase_if(backends, [](const Backend& backend) { return backend.name != "cuda"; });
  return backends;
}

std::string NameOfTiles(const ::testing::TestParamInfo<BackendAndWeight>& param) {
  return std::get<0>(param.param).name + "_" + std::get<1>(param.param).name;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MatmulTilesTest);
INSTANTIATE_TEST_SUITE_P(Backends, MatmulTilesTest,
                         ::testing::Combine(::testing::ValuesIn(CudaBackends()),
                                            ::testing::ValuesIn(TileWeights())),
                         NameOfTiles);

}  // namespace
}  // namespace nibble::conformance
