#include "nibble/weight.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nibble/numeric.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
HostBytes BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return HostBytes(std::move(bytes));
}

HostBytes U8(const std::vector<uint8_t>& values) { return BytesOf(values); }
HostBytes F32(const std::vector<float>& values) { return BytesOf(values); }

std::vector<float> Decode(const CanonicalWeight& weight) {
  std::vector<float> out(static_cast<size_t>(weight.spec.n * weight.spec.k));
  const Status status = DecodeReference(weight, 0, weight.spec.n, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

void ExpectInvalid(const CanonicalWeight& weight, const std::string& message) {
  const Status status = ValidateWeight(weight);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
  EXPECT_THAT(std::string(MessageOf(status)), HasSubstr(message));
  std::vector<float> out(static_cast<size_t>(weight.spec.n * weight.spec.k));
  EXPECT_EQ(DecodeReference(weight, 0, weight.spec.n, out), status);
}

CanonicalWeight NF4(int64_t n, int64_t k, const std::vector<uint8_t>& codes,
                    const std::vector<float>& absmax) {
  CanonicalWeight weight;
  weight.spec.format = Format::kNF4;
  weight.spec.n = n;
  weight.spec.k = k;
  weight.codes = U8(codes);
  weight.scales = F32(absmax);
  return weight;
}

CanonicalWeight Int4() {  // [2, 5], groups 0..1, 2..3, 4
  CanonicalWeight weight;
  weight.spec.format = Format::kInt4;
  weight.spec.n = 2;
  weight.spec.k = 5;
  weight.spec.group_size = 2;
  weight.codes = U8({0x10, 0x98, 0xAF, 0x76, 0x54, 0x03});
  weight.scales = F32({1.0f, 2.0f, 4.0f, 0.5f, 0.25f, 8.0f});
  return weight;
}

TEST(DecodeReference, NF4SanityVector) {
  EXPECT_THAT(Decode(NF4(2, 2, {0x7F, 0x08}, {2.0f})),
              ElementsAre(0.0f, 2.0f, -2.0f, 0.15916059911251068f));
}

TEST(DecodeReference, TableBlocksCrossRowsAndEndPartial) {
  std::vector<uint8_t> codes(50, 0xFF);  // 99 elements of code 15, the odd one padded
  const auto decoded = Decode(NF4(3, 33, codes, {3.0f, 5.0f}));
  for (size_t i = 0; i < decoded.size(); ++i) EXPECT_EQ(decoded[i], i < 64 ? 3.0f : 5.0f) << i;
}

TEST(DecodeReference, FP4EveryCode) {
  CanonicalWeight weight = NF4(1, 16, {0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF}, {1.0f});
  weight.spec.format = Format::kFP4;
  const auto decoded = Decode(weight);
  for (size_t code = 0; code < 16; ++code) {
    EXPECT_EQ(decoded[code], kFP4Table[code]);
    EXPECT_EQ(std::signbit(decoded[code]), code >= 8) << code;
  }
}

TEST(DecodeReference, NestedAbsMaxMultipliesRoundsAddsRounds) {
  std::vector<uint8_t> codes(33 * 16, 0xFF);
  CanonicalWeight weight = NF4(33, 32, codes, {});
  weight.spec.block_size = 32;
  weight.spec.nested = true;
  weight.spec.nested_block_size = 32;
  std::vector<float> map(256, 0.0f);
  map[200] = 0.1f;
  std::vector<uint8_t> scales(33, 200);
  weight.scales = U8(scales);
  weight.nested_map = F32(map);
  weight.nested_scales = F32({0.3f, 0.7f});
  weight.nested_offset = 0.9f;
  const auto decoded = Decode(weight);
  // Both products of these binary32 numbers are exact in binary64, as is the sum of two.
  const auto absmax = [](float scale) {
    const auto product = static_cast<float>(static_cast<double>(0.1f) * scale);
    return static_cast<float>(static_cast<double>(product) + 0.9f);
  };
  for (size_t row = 0; row < 33; ++row) {
    EXPECT_EQ(decoded[row * 32], absmax(row < 32 ? 0.3f : 0.7f)) << row;
  }
}

TEST(DecodeReference, Int4Symmetric) {
  EXPECT_THAT(Decode(Int4()), ElementsAre(-8, -7, 0, 2, 28, -1, -0.5f, -1, -0.75f, -40));
}

TEST(DecodeReference, Int4ZeroPointsAndGroupIndex) {
  CanonicalWeight weight = Int4();
  weight.spec.has_zero_points = true;
  weight.zero_points = U8({0, 1, 2, 15, 4, 5});
  EXPECT_THAT(Decode(weight), ElementsAre(0, 1, 14, 16, 52, -4.5f, -4, 0, 0.25f, -16));
  weight.spec.has_group_index = true;
  weight.group_index = BytesOf(std::vector<int32_t>{2, 0, 2, 1, 1});
  EXPECT_THAT(Decode(weight), ElementsAre(-8, 1, 24, 16, 28, 8, -4, -8, 0.25f, -0.25f));
}

TEST(DecodeReference, Int4ScaleDTypesAtOddAddresses) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    CanonicalWeight weight = Int4();
    weight.spec.scale_dtype = dtype;
    std::vector<std::byte> bytes(1 + 12);
    for (int i = 0; i < 6; ++i) StoreFromFloat(bytes.data() + 1, dtype, i, 0.375f);
    auto owner = std::make_shared<std::vector<std::byte>>(std::move(bytes));
    weight.scales = HostBytes(std::span<const std::byte>(*owner).subspan(1), owner);
    EXPECT_EQ(Decode(weight)[0], -3.0f) << DTypeName(dtype);
  }
}

TEST(DecodeReference, FP8EveryCodeAndLayout) {
  CanonicalWeight weight;
  weight.spec.format = Format::kFP8;
  weight.spec.n = 16;
  weight.spec.k = 16;
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  weight.codes = U8(codes);
  const auto expect = [&](const std::vector<float>& scale_of_element) {
    const auto decoded = Decode(weight);
    for (size_t i = 0; i < 256; ++i) {
      if (i == 0x7F || i == 0xFF) {
        EXPECT_TRUE(std::isnan(decoded[i]));
      } else {
        EXPECT_EQ(decoded[i], F8E4M3ToFloat(codes[i]) * scale_of_element[i]) << i;
      }
    }
  };
  weight.scales = F32({0.1f});
  std::vector<float> of_element(256, 0.1f);
  expect(of_element);

  weight.spec.scale_layout = ScaleLayout::kChannel;
  std::vector<float> channels(16);
  for (size_t i = 0; i < 256; ++i)
    of_element[i] = channels[i / 16] = 0.3f + static_cast<float>(i / 16);
  weight.scales = F32(channels);
  expect(of_element);

  weight.spec.scale_layout = ScaleLayout::kBlock;
  weight.spec.scale_block_n = 7;
  weight.spec.scale_block_k = 10;
  weight.scales = F32({1.1f, 2.1f, 3.1f, 4.1f, 5.1f, 6.1f});
  for (size_t i = 0; i < 256; ++i) {
    of_element[i] = 1.1f;
    const size_t tile = i / 16 / 7 * 2 + i % 16 / 10;
    const float tiles[6] = {1.1f, 2.1f, 3.1f, 4.1f, 5.1f, 6.1f};
    of_element[i] = tiles[tile];
  }
  expect(of_element);
}

TEST(DecodeReference, DenseRowsOfARange) {
  CanonicalWeight weight;
  weight.spec.n = 3;
  weight.spec.k = 2;
  weight.spec.dtype = DType::kF32;
  weight.codes = F32({1, 2, 3, 4, 5, 6});
  std::vector<float> out(2);
  ASSERT_TRUE(DecodeReference(weight, 1, 1, out).ok());
  EXPECT_THAT(out, ElementsAre(3, 4));
  EXPECT_TRUE(DecodeReference(weight, 3, 0, {}).ok());

  const auto message = [&](int64_t begin, int64_t rows, std::span<float> span) {
    return std::string(MessageOf(DecodeReference(weight, begin, rows, span)));
  };
  EXPECT_THAT(message(2, 2, out), HasSubstr("rows: expected a range within [0, 3)"));
  EXPECT_THAT(message(-1, 1, out), HasSubstr("rows: expected"));
  EXPECT_THAT(message(1, INT64_MAX, out), HasSubstr("rows: expected"));
  EXPECT_THAT(message(0, -1, out), HasSubstr("rows: expected"));
  EXPECT_THAT(message(0, 2, out), HasSubstr("out: expected 4 elements; received 2"));
}

TEST(ValidateWeight, EveryPartHasExactlyItsBytes) {
  CanonicalWeight weight = Int4();
  weight.codes = U8({1, 2, 3, 4, 5});
  ExpectInvalid(weight, "codes: expected 6 bytes; received 5");
  weight = Int4();
  weight.scales = F32({1, 2, 3, 4, 5, 6, 7});
  ExpectInvalid(weight, "scales: expected 24 bytes; received 28");
  weight = Int4();
  weight.zero_points = U8({1});
  ExpectInvalid(weight, "zero_points: expected 0 bytes; received 1");
  weight.spec.has_zero_points = true;
  ExpectInvalid(weight, "zero_points: expected 6 bytes; received 1");
  weight = Int4();
  weight.spec.has_group_index = true;
  ExpectInvalid(weight, "group_index: expected 20 bytes; received 0");
  weight = Int4();
  weight.nested_scales = F32({1});
  ExpectInvalid(weight, "nested_scales: expected 0 bytes; received 4");
  weight = Int4();
  weight.nested_map = F32({1});
  ExpectInvalid(weight, "nested_map: expected 0 bytes; received 4");
  weight = Int4();
  weight.spec.has_bias = true;
  weight.bias = U8({1, 2});
  ExpectInvalid(weight, "bias: expected 4 bytes; received 2");
  weight = Int4();
  weight.spec.k = 0;
  ExpectInvalid(weight, "k: expected a value of at least 1; received 0");

  CanonicalWeight nested = NF4(1, 4, {0, 0}, {});
  nested.spec.nested = true;
  nested.scales = U8({0});
  ExpectInvalid(nested, "nested_scales: expected 4 bytes; received 0");
  nested.nested_scales = F32({1});
  ExpectInvalid(nested, "nested_map: expected 1024 bytes; received 0");
}

TEST(ValidateWeight, ZeroPointsAndGroupIndicesAreInRange) {
  CanonicalWeight weight = Int4();
  weight.spec.has_zero_points = true;
  weight.zero_points = U8({0, 15, 0, 0, 16, 0});
  ExpectInvalid(weight, "zero_points[1, 1]: expected 0 to 15; received 16");
  for (int32_t bad : {-1, 3, std::numeric_limits<int32_t>::min()}) {
    weight = Int4();
    weight.spec.has_group_index = true;
    weight.group_index = BytesOf(std::vector<int32_t>{0, 1, 2, bad, 0});
    ExpectInvalid(weight, "group_index[3]: expected 0 to 2; received " + std::to_string(bad));
  }
}

TEST(ValidateWeight, InputScaleIsFiniteAndAboveZero) {
  CanonicalWeight weight;
  weight.spec.format = Format::kFP8;
  weight.spec.n = weight.spec.k = 1;
  weight.codes = U8({0x38});
  weight.scales = F32({1.0f});
  weight.input_scale = 0.0f;
  EXPECT_TRUE(ValidateWeight(weight).ok());
  weight.spec.has_input_scale = true;
  ExpectInvalid(weight, "input_scale: expected a finite value above 0; received 0");
  weight.input_scale = std::numeric_limits<float>::infinity();
  ExpectInvalid(weight, "input_scale: expected a finite value above 0; received inf");
  weight.input_scale = 0.5f;
  EXPECT_TRUE(ValidateWeight(weight).ok());
}

// Gives codes of a weight that has them.
class FakeSource final : public CodeSource {
 public:
  explicit FakeSource(HostBytes codes) : codes_(std::move(codes)) {}
  CodeTile PreferredTile() const override { return {.rows = 32, .inputs = 32}; }
  void Read(const CodeTile&, std::byte*, int64_t) const override {}
  HostBytes ReadAll() const override { return codes_; }

 private:
  const HostBytes codes_;
};

TEST(CodeSourceTest, StandsInForTheCodesOfInt4) {
  const CanonicalWeight whole = Int4();
  CanonicalWeight weight = whole;
  weight.code_source = std::make_shared<FakeSource>(whole.codes);
  EXPECT_EQ(ValidateWeight(weight).code(), absl::StatusCode::kInvalidArgument);  // both
  weight.codes = HostBytes();
  EXPECT_TRUE(ValidateWeight(weight).ok());
  std::vector<float> out(static_cast<size_t>(weight.spec.n * weight.spec.k));
  EXPECT_THAT(std::string(MessageOf(DecodeReference(weight, 0, weight.spec.n, out))),
              HasSubstr("received a source"));
  EXPECT_EQ(Decode(WithCodes(weight)), Decode(whole));
  EXPECT_EQ(Decode(WithCodes(whole)), Decode(whole));
  CanonicalWeight table = NF4(2, 32, std::vector<uint8_t>(32), {1.0f});
  table.code_source = std::make_shared<FakeSource>(table.codes);
  table.codes = HostBytes();
  EXPECT_EQ(ValidateWeight(table).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble
