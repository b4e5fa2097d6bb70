// Quantize gives the codes and scales of bitsandbytes itself:
// tests/golden/make/bitsandbytes_codes.py made them.
#include <algorithm>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "nibble/quantize.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/safetensors.h"
#include "tests/unit/kernels/quantize/fixture.h"

namespace nibble {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::TensorEntry;

class BitsandbytesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file =
        SafetensorsFile::Open(NIBBLE_SOURCE_DIR "/tests/golden/quantize/bitsandbytes.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }

  const TensorEntry& Tensor(const std::string& name) const {
    const TensorEntry* entry = file_.Find(name);
    if (entry == nullptr) ADD_FAILURE() << "no tensor " << name;
    static const TensorEntry none;
    return entry == nullptr ? none : *entry;
  }

  static void ExpectBytes(const HostBytes& actual, const TensorEntry& expected,
                          std::string_view part) {
    ASSERT_EQ(actual.size(), expected.data.size()) << part;
    const auto [at, other] =
        std::mismatch(actual.span().begin(), actual.span().end(), expected.data.begin());
    EXPECT_TRUE(at == actual.span().end())
        << part << " differs at byte " << at - actual.span().begin();
  }

  SafetensorsFile file_;
};

DType DTypeOf(const TensorEntry& entry) {
  return entry.dtype == "F32" ? DType::kF32 : entry.dtype == "F16" ? DType::kF16 : DType::kBF16;
}

TEST_F(BitsandbytesTest, CodesAndScalesAreTheLibrarys) {
  const auto cases = nlohmann::json::parse(file_.metadata().at("cases"));
  ASSERT_GE(cases.size(), 30u);
  for (const auto& [name, made] : cases.items()) {
    SCOPED_TRACE(name);
    const TensorEntry& input = Tensor(made["input"]);
    const auto matrix =
        MakeConstView(input.data.data(), DTypeOf(input), made["shape"][0], made["shape"][1]);
    ASSERT_LE(matrix.rows * matrix.cols, input.elements());
    WeightSpec target;
    target.format = made["format"] == "nf4" ? Format::kNF4 : Format::kFP4;
    target.block_size = made["block_size"];
    target.nested = made["nested"];
    const auto weight = Quantize(matrix, target);
    ASSERT_TRUE(weight.ok()) << weight.status();
    ExpectBytes(weight->codes, Tensor(name + ".codes"), "codes");
    if (target.nested) {
      // The library's mean is a binary32 sum whose order depends on its machine; where it is the
      // mean rounded once, everything that follows is defined to the bit. It is in all of these
      // cases.
      const TensorEntry& offset = Tensor(name + ".nested_offset");
      ASSERT_EQ(weight->nested_offset, LoadAsFloat(offset.data.data(), DType::kF32, 0));
      ExpectBytes(weight->nested_scales, Tensor(name + ".nested_absmax"), "nested_absmax");
      ExpectBytes(weight->nested_map, Tensor("nested_map"), "nested_map");
    }
    ExpectBytes(weight->scales, Tensor(name + ".absmax"), "absmax");
  }
}

// The library turns NaN and infinity into codes without a word; here they are refused.
TEST(QuantizeTable, NaNAndInfinityAreRefusedInAnyBlock) {
  for (int64_t at : {0, 63, 64, 5000, 70000, 70004}) {
    std::vector<float> values(70005, 0.5f);
    values[static_cast<size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
    const TestMatrix matrix = MakeMatrix(DType::kF32, 1, 70005, values);
    WeightSpec target;
    target.format = Format::kNF4;
    target.nested = true;
    const auto weight = Quantize(matrix.view(), target);
    EXPECT_EQ(weight.status().code(), absl::StatusCode::kInvalidArgument) << at;
  }
}

}  // namespace
}  // namespace nibble
