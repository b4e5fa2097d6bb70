// Matmuls whose tiles blocks of a GPU share: of 64, 128 and 256 outputs whose K several blocks
// multiply, some that no block shares, tiles of 256 rows, whole and halved, and outputs, rows and
// inputs that do not come out even.
#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/conformance/layer.h"
#include "tests/conformance/params.h"

namespace nibble::conformance {
namespace {

struct Tiles {
  std::string_view variant;
  int64_t n, k, m;
  DType input;
};

using BackendAndTiles = std::tuple<Backend, Tiles>;

std::string NameOfTiles(const ::testing::TestParamInfo<BackendAndTiles>& param) {
  const auto& [backend, tiles] = param.param;
  return fmt::format("{}_{}_{}_{}x{}_{}", backend.name, tiles.variant, DTypeName(tiles.input),
                     tiles.n, tiles.k, tiles.m);
}

constexpr Tiles kTiles[] = {
    {"int4_group_128", 1000, 1152, 9, DType::kBF16},
    {"int4_group_32_zp", 70, 4608, 12, DType::kF16},
    {"fp4_nested", 130, 4096, 16, DType::kBF16},
    {"int4_act_order", 130, 4100, 17, DType::kBF16},
    {"nf4_nested", 200, 4224, 33, DType::kBF16},
    {"int4_group_32_zp", 130, 4100, 70, DType::kBF16},
    {"nf4_nested", 130, 4096, 70, DType::kF16},
    {"int4_group_128", 150, 2048, 140, DType::kF16},
    {"int4_group_32_zp", 4300, 1664, 17, DType::kBF16},
    {"int4_group_128", 4300, 896, 20, DType::kF16},
    {"nf4_nested", 4300, 640, 33, DType::kBF16},
    {"int4_group_32_zp", 4300, 200, 65, DType::kBF16},
    {"int4_group_128", 4300, 200, 66, DType::kF16},
    {"int4_group_128", 8600, 1152, 9, DType::kBF16},
    {"nf4_nested", 8600, 256, 33, DType::kBF16},
    {"int4_group_32_zp", 8600, 200, 65, DType::kBF16},
    {"int4_group_128", 66, 14336, 33, DType::kBF16},
    {"int4_group_128", 130, 11520, 16, DType::kBF16},
    {"nf4_nested", 4230, 1280, 65, DType::kBF16},
    {"nf4_nested", 8460, 256, 65, DType::kBF16},
    {"int4_group_128", 2900, 40, 900, DType::kBF16},
    {"int4_group_128", 8711, 136, 513, DType::kBF16},
    {"int4_group_32_zp", 8711, 72, 513, DType::kBF16},
    {"nf4_nested", 8711, 136, 514, DType::kBF16},
    {"int4_group_128", 22600, 512, 17, DType::kBF16},
    {"int4_group_128", 20000, 512, 33, DType::kBF16},
    {"int4_group_32_zp", 17000, 200, 17, DType::kF16},
    {"fp8_channel_bias", 17000, 512, 33, DType::kBF16},
};

class MatmulSharedTilesTest : public ::testing::TestWithParam<BackendAndTiles> {
 protected:
  Runner runner_{*DevicesOf(std::get<0>(GetParam()))[0]};
};

TEST_P(MatmulSharedTilesTest, MatchTheOracleAndRepeat) {
  const auto& [backend, tiles] = GetParam();
  const std::vector<Variant> variants = AllVariants();
  const auto variant = std::ranges::find(variants, tiles.variant, &Variant::name);
  ASSERT_NE(variant, variants.end());
  Layer layer(backend, runner_, RandomWeight(variant->SpecOf(tiles.n, tiles.k), 40));
  layer.ExpectOracle(tiles.m, tiles.input, tiles.m % 2 == 0 ? tiles.input : DType::kF32, 41);
  layer.ExpectRepeats(tiles.m, tiles.input, 3, 42);
}

INSTANTIATE_TEST_SUITE_P(Backends, MatmulSharedTilesTest,
                         ::testing::Combine(::testing::ValuesIn(AllBackends()),
                                            ::testing::ValuesIn(kTiles)),
                         NameOfTiles);

}  // namespace
}  // namespace nibble::conformance
