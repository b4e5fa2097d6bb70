// Dequantize is bit-exact for every format, variant, row range and output type.
#include <cmath>

#include "gtest/gtest.h"
#include "tests/conformance/params.h"
#include "tests/conformance/runner.h"

namespace nibble::conformance {
namespace {

class DequantizeTest : public ::testing::TestWithParam<BackendAndVariant> {
 protected:
  // Rows [begin, begin + rows) in each output type against the decoded weight.
  void ExpectExact(const DeviceWeight& weight, const HostMatrix& decoded, int64_t begin,
                   int64_t rows) {
    for (const DType output : {DType::kF32, DType::kF16, DType::kBF16}) {
      const HostMatrix out = runner_.Dequantize(weight, begin, rows, output);
      int64_t wrong = 0;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < decoded.cols; ++col) {
          HostMatrix expected(output, 1, 1);
          expected.Set(0, 0, decoded.At(begin + row, col));
          if (out.BitsAt(row, col) == expected.BitsAt(0, 0)) continue;
          if (wrong++ == 0) {
            ADD_FAILURE() << DTypeName(output) << " W[" << begin + row << ", " << col
                          << "]: expected " << expected.At(0, 0) << ", received "
                          << out.At(row, col);
          }
        }
      }
      EXPECT_EQ(wrong, 0) << "of " << rows * decoded.cols << " elements";
    }
  }

  const Backend backend_ = std::get<0>(GetParam());
  const Variant variant_ = std::get<1>(GetParam());
  Runner runner_{*DevicesOf(backend_)[0]};
};

TEST_P(DequantizeTest, IsBitExactForEveryShapeAndRowRange) {
  constexpr struct {
    int64_t n, k;
  } kShapes[] = {{1, 1}, {37, 531}, {5, 1031}, {129, 96}, {51, 448}, {67, 1}, {1, 4099}};
  uint64_t seed = 1;
  for (const auto& [n, k] : kShapes) {
    SCOPED_TRACE(::testing::Message() << n << "x" << k);
    const CanonicalWeight weight = RandomWeight(variant_.SpecOf(n, k), ++seed);
    const HostMatrix decoded = Decode(weight);
    const auto uploaded = runner_.Upload(weight);
    ExpectExact(*uploaded, decoded, 0, n);
    ExpectExact(*uploaded, decoded, n / 2, n - n / 2);
    runner_.set_row_padding(3);
    ExpectExact(*uploaded, decoded, n - 1, 1);
    runner_.set_row_padding(0);
    EXPECT_EQ(runner_.Dequantize(*uploaded, n, 0, DType::kF32).rows, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DequantizeTest,
                         ::testing::Combine(::testing::ValuesIn(AllBackends()),
                                            ::testing::ValuesIn(AllVariants())),
                         NameOf);

class DequantizeBackendTest : public ::testing::TestWithParam<Backend> {
 protected:
  // F32 and rounded outputs against the decoded weight; NaN meets NaN.
  void ExpectDecoded(const CanonicalWeight& weight) {
    const HostMatrix decoded = Decode(weight);
    const auto uploaded = runner_.Upload(weight);
    for (const DType output : {DType::kF32, DType::kF16, DType::kBF16}) {
      const HostMatrix out = runner_.Dequantize(*uploaded, 0, weight.spec.n, output);
      for (int64_t n = 0; n < weight.spec.n; ++n) {
        for (int64_t k = 0; k < weight.spec.k; ++k) {
          const float expected = RoundTo(output, decoded.At(n, k));
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(out.At(n, k))) << n << ", " << k;
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(out.At(n, k)), std::bit_cast<uint32_t>(expected))
                << DTypeName(output) << " W[" << n << ", " << k << "]";
          }
        }
      }
    }
  }

  Runner runner_{*DevicesOf(GetParam())[0]};
};

// The whole range of a 16-bit type through the widening and narrowing of each output.
TEST_P(DequantizeBackendTest, DenseHandlesEveryBitPattern) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(DTypeName(dtype));
    CanonicalWeight weight;
    weight.spec.dtype = dtype;
    weight.spec.n = 64;
    weight.spec.k = 1024;
    std::vector<std::byte> patterns;
    for (int pattern = 0; pattern < 65536; ++pattern) {
      patterns.push_back(static_cast<std::byte>(pattern & 0xFF));
      patterns.push_back(static_cast<std::byte>(pattern >> 8));
    }
    weight.codes = HostBytes(std::move(patterns));
    ExpectDecoded(weight);
  }
}

TEST_P(DequantizeBackendTest, DenseRoundsEveryBinade) {
  CanonicalWeight weight;
  weight.spec.dtype = DType::kF32;
  weight.spec.n = 16;
  weight.spec.k = 4099;
  HostMatrix values(DType::kF32, 16, 4099);
  Random random(3);
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t k = 0; k < 4099; ++k) {
      values.Set(n, k, std::bit_cast<float>(static_cast<uint32_t>(random.Bits())));
    }
  }
  weight.codes = ToHostBytes(values);
  ExpectDecoded(weight);
}

TEST_P(DequantizeBackendTest, GroupIndexMayLeaveGroupsEmptyOrUneven) {
  CanonicalWeight weight;
  WeightSpec& spec = weight.spec;
  spec.format = Format::kInt4;
  spec.n = 5;
  spec.k = 301;
  spec.group_size = 32;
  spec.has_zero_points = true;
  spec.has_group_index = true;
  for (const int64_t pattern : {0, 1, 2, 3}) {
    SCOPED_TRACE(pattern);
    CanonicalWeight filled = RandomWeight(spec, 4);
    std::vector<int32_t> groups;
    for (int32_t k = 0; k < 301; ++k) {
      const int32_t group_of[] = {9, 0, k % 2 == 0 ? 3 : 7, k * k % 10};
      groups.push_back(group_of[pattern]);
    }
    const auto bytes = std::as_bytes(std::span(groups));
    filled.group_index = HostBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
    ExpectDecoded(filled);
  }
}

TEST_P(DequantizeBackendTest, ScalesMayBeZeroNegativeOrNotFinite) {
  for (const Format format : {Format::kNF4, Format::kInt4, Format::kFP8}) {
    SCOPED_TRACE(FormatName(format));
    WeightSpec spec;
    spec.format = format;
    spec.n = 6;
    spec.k = 64;
    spec.group_size = 64;
    spec.scale_layout = ScaleLayout::kChannel;
    CanonicalWeight weight = RandomWeight(spec, 5);
    HostMatrix scales(DType::kF32, 6, 1);
    const float values[] = {0.0f,
                            -0.5f,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            0x1p-140f,
                            0x1.FFFFFEp127f};
    for (int64_t n = 0; n < 6; ++n) scales.Set(n, 0, values[n]);
    weight.scales = ToHostBytes(scales);
    ExpectDecoded(weight);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DequantizeBackendTest, ::testing::ValuesIn(AllBackends()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace nibble::conformance
