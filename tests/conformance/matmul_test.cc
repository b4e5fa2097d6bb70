// Matmul of every format and variant against the float64 oracle over the exactly decoded weight.

#include "fmt/format.h"
#include "gtest/gtest.h"
#include "nibble/quantize.h"
#include "tests/conformance/layer.h"
#include "tests/conformance/params.h"

namespace nibble::conformance {
namespace {

constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kOutputTypes[] = {DType::kBF16, DType::kF32, DType::kF16};

class MatmulTest : public ::testing::TestWithParam<BackendAndVariant> {
 protected:
  const Backend backend_ = std::get<0>(GetParam());
  const Variant variant_ = std::get<1>(GetParam());
  Runner runner_{*DevicesOf(backend_)[0]};
};

TEST_P(MatmulTest, MatchesTheOracleForEveryM) {
  constexpr int64_t kMaxM = 257;
  Layer layer(backend_, runner_, RandomWeight(variant_.SpecOf(37, 531), 1));
  for (size_t type = 0; type < std::size(kFloatTypes); ++type) {
    const HostMatrix x = RandomActivations(kFloatTypes[type], kMaxM, 531, 2 + type);
    const std::vector<double> doubles = ToDoubles(x);
    const std::vector<double> oracle = layer.Oracle(doubles, kMaxM);
    std::vector<int64_t> rows = {63, 64, 65, 127, 128, 129, 255, 256, 257};
    for (int64_t m = 0; m <= 17; ++m) rows.push_back(m);
    for (const int64_t m : rows) {
      layer.ExpectOracle({.x = x.Rows(0, m)}, kOutputTypes[type], doubles, oracle);
    }
  }
}

TEST_P(MatmulTest, MatchesTheOracleForEveryShape) {
  constexpr struct {
    int64_t n, k;
  } kShapes[] = {{1, 1},    {1, 257},  {131, 1},  {7, 31},    {5, 33},   {24, 512},
                 {25, 513}, {64, 128}, {3, 1030}, {129, 160}, {16, 4096}};
  uint64_t seed = 10;
  for (const auto& [n, k] : kShapes) {
    Layer layer(backend_, runner_, RandomWeight(variant_.SpecOf(n, k), seed));
    for (const int64_t m : {1, 5, 8, 19}) {
      runner_.set_row_padding(m == 5 ? 3 : 0);
      const auto input = static_cast<size_t>(seed % 3);
      const auto output = static_cast<size_t>(seed / 3 % 3);
      layer.ExpectOracle(m, kFloatTypes[input], kFloatTypes[output], ++seed);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MatmulTest,
                         ::testing::Combine(::testing::ValuesIn(AllBackends()),
                                            ::testing::ValuesIn(AllVariants())),
                         NameOf);

class MatmulBackendTest : public ::testing::TestWithParam<Backend> {
 protected:
  Runner runner_{*DevicesOf(GetParam())[0]};
};

TEST_P(MatmulBackendTest, MatchesTheOracleForManyRows) {
  for (const Variant& variant : AllVariants()) {
    if (variant.name != "nf4" && variant.name != "int4_group_32_zp" &&
        variant.name != "fp8_block") {
      continue;
    }
    SCOPED_TRACE(variant.name);
    Layer small(GetParam(), runner_, RandomWeight(variant.SpecOf(5, 3), 3));
    small.ExpectOracle(65537, DType::kBF16, DType::kF32, 4);
    Layer wide(GetParam(), runner_, RandomWeight(variant.SpecOf(9, 67), 5));
    wide.ExpectOracle(4096, DType::kF16, DType::kBF16, 6);
  }
}

// More tiles than a device has cores, and rows longer than a kernel keeps in registers.
TEST_P(MatmulBackendTest, MatchesTheOracleForManyOutputsAndInputs) {
  constexpr struct {
    int64_t n, k;
  } kShapes[] = {{4997, 384}, {9011, 128}, {1000, 2176}, {48, 9088}, {33, 14336}};
  for (const Variant& variant : AllVariants()) {
    if (variant.name != "nf4_nested" && variant.name != "int4_group_128" &&
        variant.name != "int4_group_32_zp" && variant.name != "fp8_channel_bias") {
      continue;
    }
    SCOPED_TRACE(variant.name);
    for (const auto& [n, k] : kShapes) {
      Layer layer(GetParam(), runner_, RandomWeight(variant.SpecOf(n, k), 30));
      layer.ExpectOracle(3, DType::kBF16, DType::kF32, 31);
      layer.ExpectOracle(13, DType::kF16, DType::kBF16, 32);
      // On kernels that others may be faster than.
      runner_.set_batch_invariant(true);
      layer.ExpectOracle(16, DType::kBF16, DType::kF16, 33);
      runner_.set_batch_invariant(false);
    }
  }
}

// The same of both at once; FewRowsTest compares other rows with these.
TEST_P(MatmulBackendTest, MatchesTheOracleForManyOutputsOfLongRows) {
  for (const Variant& variant : AllVariants()) {
    if (variant.name != "nf4_nested" && variant.name != "int4_group_128") continue;
    SCOPED_TRACE(variant.name);
    for (const int64_t k : {4224, 8320}) {
      Layer layer(GetParam(), runner_, RandomWeight(variant.SpecOf(4300, k), 34));
      runner_.set_batch_invariant(true);
      layer.ExpectOracle(11, DType::kBF16, DType::kF32, 35);
      runner_.set_batch_invariant(false);
    }
  }
}

// FP8 of few rows by default, one scale a row or in all, ragged N and K: long K of which x fits one
// block, halves of it two, and neither; and few inputs.
TEST_P(MatmulBackendTest, MatchesTheOracleForFewRowsOfFp8) {
  struct Case {
    int64_t n;
    int64_t k;
    std::vector<int64_t> rows;
  };
  const Case cases[] = {{37, 5150, {1, 2, 3, 4, 5, 8, 9}},
                        {33, 14300, {2, 4, 5, 6, 8}},
                        {33, 20500, {4, 5, 7, 8}},
                        {2190, 3050, {4, 5, 8, 9, 13, 16}}};
  for (const Variant& variant : AllVariants()) {
    if (variant.name != "fp8_channel_bias" && variant.name != "fp8_tensor") continue;
    for (const auto& [n, k, rows] : cases) {
      SCOPED_TRACE(variant.name + " " + std::to_string(n) + "x" + std::to_string(k));
      Layer layer(GetParam(), runner_, RandomWeight(variant.SpecOf(n, k), 46));
      for (const int64_t m : rows) {
        layer.ExpectOracle(m, DType::kBF16, DType::kBF16, 47);
        layer.ExpectOracle(m, DType::kF16, DType::kF32, 48);
      }
    }
  }
}

TEST_P(MatmulBackendTest, MatchesTheOracleForQuantizedMatrices) {
  const HostMatrix matrix = RandomActivations(DType::kBF16, 48, 320, 7);
  for (const Variant& variant : AllVariants()) {
    if (variant.spec.has_group_index) continue;  // comes from checkpoints, not from quantizing
    SCOPED_TRACE(variant.name);
    const auto quantized = Quantize(matrix.view(), variant.SpecOf(48, 320));
    ASSERT_TRUE(quantized.ok()) << quantized.status();
    Layer layer(GetParam(), runner_, *quantized);
    layer.ExpectOracle(3, DType::kBF16, DType::kBF16, 8);
    layer.ExpectOracle(40, DType::kF16, DType::kF32, 9);
  }
}

// Where groups differ in size the inputs cannot be sorted into equal groups.
TEST_P(MatmulBackendTest, MatchesTheOracleForUnevenGroups) {
  WeightSpec spec;
  spec.format = Format::kInt4;
  spec.n = 37;
  spec.k = 320;
  spec.group_size = 64;
  spec.has_zero_points = true;
  spec.has_group_index = true;
  CanonicalWeight weight = RandomWeight(spec, 40);
  std::vector<int32_t> groups;
  for (int32_t k = 0; k < 320; ++k) groups.push_back(k * k % 5);
  const auto bytes = std::as_bytes(std::span(groups));
  weight.group_index = HostBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
  Layer layer(GetParam(), runner_, weight);
  for (const int64_t m : {1, 9, 70}) {
    layer.ExpectOracle(m, DType::kBF16, DType::kF32, 41);
    layer.ExpectOracle(m, DType::kF16, DType::kBF16, 42);
    layer.ExpectOracle(m, DType::kF32, DType::kF32, 43);
  }
}

TEST_P(MatmulBackendTest, SixteenBitResultsOverflowToInfinityOnlyAtTheEnd) {
  WeightSpec spec;
  spec.format = Format::kDense;
  spec.dtype = DType::kF32;
  spec.n = 2;
  spec.k = 64;
  HostMatrix w(DType::kF32, 2, 64);
  for (int64_t k = 0; k < 64; ++k) {
    w.Set(0, k, 1.0f);
    w.Set(1, k, k < 32 ? 1.0f : -1.0f);  // partial sums past the range of F16, result 0
  }
  CanonicalWeight weight;
  weight.spec = spec;
  weight.codes = ToHostBytes(w);
  const auto uploaded = runner_.Upload(weight);
  HostMatrix x(DType::kF16, 1, 64);
  for (int64_t k = 0; k < 64; ++k) x.Set(0, k, 60000.0f);
  const HostMatrix y = runner_.Matmul(*uploaded, {.x = x}, DType::kF16);
  EXPECT_TRUE(std::isinf(y.At(0, 0)));
  EXPECT_EQ(y.At(0, 1), 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Backends, MatmulBackendTest, ::testing::ValuesIn(AllBackends()),
                         ::testing::PrintToStringParamName());

// FP8 weights with quantized activations.
class QuantizedActivationsTest : public ::testing::TestWithParam<BackendAndVariant> {
 protected:
  static constexpr int64_t kN = 37;
  static constexpr int64_t kK = 300;
  const Backend backend_ = std::get<0>(GetParam());
  Runner runner_{*DevicesOf(backend_)[0]};
  Layer layer_{backend_, runner_, RandomWeight(std::get<1>(GetParam()).SpecOf(kN, kK), 20)};
};

TEST_P(QuantizedActivationsTest, QuantizesAsTheOutputQuantizerDoes) {
  uint64_t seed = 21;
  for (const QuantMode mode : {QuantMode::kPerToken, QuantMode::kPerGroup, QuantMode::kStatic}) {
    for (const DType dtype : kFloatTypes) {
      for (const int64_t m : {1, 2, 9, 70}) {
        // Saturates the largest activations, which reach 2.
        const OutputQuant quant{mode, 0.004f};
        const HostMatrix x = RandomActivations(dtype, m, kK, ++seed);
        const auto doubles = DecodeActivations(QuantizeReference(x, quant, DType::kF8E4M3), mode);
        SCOPED_TRACE(QuantModeName(mode));
        layer_.ExpectOracle({.x = x, .activation = mode, .static_scale = quant.static_scale},
                            DType::kF32, doubles, layer_.Oracle(doubles, m));
      }
    }
  }
}

TEST_P(QuantizedActivationsTest, TakesQuantizedActivationsWithTheirScales) {
  uint64_t seed = 50;
  for (const QuantMode mode : {QuantMode::kPerToken, QuantMode::kPerGroup}) {
    for (const bool repeat : {false, true}) {
      for (const int64_t m : {1, 2, 9, 70}) {
        const HostMatrix x = RandomActivations(DType::kF32, m, kK, ++seed);
        QuantizedRows rows = QuantizeReference(x, {mode, 1.0f}, DType::kF8E4M3);
        if (repeat) rows.scales = rows.scales.Rows(0, 1);
        const auto doubles = DecodeActivations(rows, mode);
        SCOPED_TRACE(QuantModeName(mode));
        layer_.ExpectOracle(
            {.x = rows.codes, .activation = mode, .x_scales = rows.scales, .repeat_scales = repeat},
            DType::kF32, doubles, layer_.Oracle(doubles, m));
      }
    }
  }
}

// Shapes of which a tile or a block of scales is not whole, and those that a library may take.
TEST_P(QuantizedActivationsTest, MatchesTheOracleForEveryShape) {
  constexpr struct {
    int64_t n, k;
  } kShapes[] = {{1, 1}, {131, 127}, {144, 304}, {272, 1040}, {400, 512}, {128, 4224}};
  const Variant variant = std::get<1>(GetParam());
  uint64_t seed = 90;
  for (const auto& [n, k] : kShapes) {
    Layer layer(backend_, runner_, RandomWeight(variant.SpecOf(n, k), ++seed));
    for (const int64_t m : {1, 16, 33, 129, 260}) {
      runner_.set_row_padding(m == 33 ? 3 : 0);
      for (const QuantMode mode : {QuantMode::kPerToken, QuantMode::kPerGroup}) {
        SCOPED_TRACE(QuantModeName(mode));
        const DType output = kOutputTypes[seed % 3];
        const HostMatrix x = RandomActivations(DType::kBF16, m, k, ++seed);
        const QuantizedRows rows = QuantizeReference(x, {mode, 1.0f}, DType::kF8E4M3);
        const auto doubles = DecodeActivations(rows, mode);
        const auto oracle = layer.Oracle(doubles, m);
        layer.ExpectOracle({.x = x, .activation = mode}, output, doubles, oracle);
        layer.ExpectOracle({.x = rows.codes, .activation = mode, .x_scales = rows.scales}, output,
                           doubles, oracle);
      }
    }
  }
  runner_.set_row_padding(0);
}

// Rows among others, and repeats.
TEST_P(QuantizedActivationsTest, ARowDoesNotDependOnTheOthers) {
  const Variant variant = std::get<1>(GetParam());
  const auto uploaded = runner_.Upload(RandomWeight(variant.SpecOf(144, 400), 60));
  for (const QuantMode mode : {QuantMode::kPerToken, QuantMode::kPerGroup}) {
    for (const int64_t m : {9, 140}) {
      SCOPED_TRACE(fmt::format("{} M={}", QuantModeName(mode), m));
      const HostMatrix x = RandomActivations(DType::kF16, m, 400, 61);
      HostMatrix mixed = RandomActivations(DType::kF16, m, 400, 62);
      for (int64_t row = 0; row < m; row += 3) {
        for (int64_t k = 0; k < 400; ++k) mixed.Set(row, k, x.At(row, k));
      }
      const HostMatrix y = runner_.Matmul(*uploaded, {.x = x, .activation = mode}, DType::kF32);
      for (int repeat = 0; repeat < 10; ++repeat) {
        ASSERT_EQ(runner_.Matmul(*uploaded, {.x = x, .activation = mode}, DType::kF32), y);
      }
      const HostMatrix other =
          runner_.Matmul(*uploaded, {.x = mixed, .activation = mode}, DType::kF32);
      for (int64_t row = 0; row < m; row += 3) EXPECT_EQ(other.Rows(row, 1), y.Rows(row, 1)) << row;
    }
  }
}

TEST_P(QuantizedActivationsTest, NanAndInfinityStayInTheirRows) {
  for (const QuantMode mode : {QuantMode::kPerToken, QuantMode::kPerGroup, QuantMode::kStatic}) {
    SCOPED_TRACE(QuantModeName(mode));
    HostMatrix x = RandomActivations(DType::kBF16, 6, kK, 70);
    x.Set(1, 5, std::numeric_limits<float>::quiet_NaN());
    x.Set(3, 7, -std::numeric_limits<float>::infinity());
    for (int64_t k = 0; k < kK; ++k) x.Set(4, k, 0.0f);
    const OutputQuant quant{mode, 0.01f};
    const auto doubles = DecodeActivations(QuantizeReference(x, quant, DType::kF8E4M3), mode);
    layer_.ExpectOracle({.x = x, .activation = mode, .static_scale = quant.static_scale},
                        DType::kF32, doubles, layer_.Oracle(doubles, 6));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, QuantizedActivationsTest,
                         ::testing::Combine(::testing::ValuesIn(AllBackends()),
                                            ::testing::ValuesIn(Fp8Variants())),
                         NameOf);

}  // namespace
}  // namespace nibble::conformance
