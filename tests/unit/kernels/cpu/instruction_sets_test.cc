// Every instruction set that this machine and this build know, not only the one it would choose.
#include <cmath>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/matmul.h"
#include "nibble/nibbles.h"
#include "nibble/numeric.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/reference.h"
#include "tests/conformance/weights.h"

namespace nibble::cpu {
namespace {

using conformance::HostMatrix;
using conformance::Random;

class InstructionSetsTest : public ::testing::Test {
 protected:
  void TearDown() override { Use(0); }

  // Runs `check` with dispatch forced to each instruction set in turn.
  template <class Check>
  void ForEach(Check check) {
    int64_t targets = hwy::SupportedTargets();
    while (targets != 0) {
      const int64_t target = targets & -targets;
      targets ^= target;
      SCOPED_TRACE(hwy::TargetName(target));
      Use(target);
      check();
    }
  }

 private:
  // 0: what the machine has.
  static void Use(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

int NibbleOf(const std::vector<std::byte>& rows, int64_t stride, int64_t row, int64_t index) {
  const auto byte = static_cast<int>(rows[static_cast<size_t>(row * stride + index / 2)]);
  return index % 2 == 0 ? byte & 15 : byte >> 4;
}

TEST_F(InstructionSetsTest, TurnNibblesAlike) {
  Random random(5);
  ForEach([&] {
    for (int64_t count = 0; count < 40; ++count) {
      const int64_t from_stride = 4 * count + 3;
      const int64_t to_stride = 4 * count + 1;
      std::vector<std::byte> from(static_cast<size_t>(8 * from_stride));
      for (std::byte& byte : from) byte = static_cast<std::byte>(random.Below(256));
      std::vector<std::byte> to(static_cast<size_t>(8 * to_stride), std::byte{0xEE});
      TransposeNibbles(from.data(), from_stride, count, to.data(), to_stride,
                       count % 2 == 0 ? nullptr : from.data());
      for (int64_t row = 0; row < 8; ++row) {
        for (int64_t i = 0; i < 8 * count; ++i) {
          ASSERT_EQ(NibbleOf(to, to_stride, row, i),
                    NibbleOf(from, from_stride, i % 8, i / 8 * 8 + row))
              << count << " words, row " << row << ", nibble " << i;
        }
        ASSERT_EQ(to[static_cast<size_t>((row + 1) * to_stride - 1)], std::byte{0xEE});
      }
    }
  });
}

void ExpectLoads(const std::vector<std::byte>& bytes, DType dtype) {
  const auto count = static_cast<int64_t>(bytes.size() / DTypeBytes(dtype));
  std::vector<float> loaded(static_cast<size_t>(count));
  LoadFloats(bytes.data(), dtype, count, loaded.data());
  for (int64_t i = 0; i < count; ++i) {
    const float expected = LoadAsFloat(bytes.data(), dtype, i);
    ASSERT_EQ(std::bit_cast<uint32_t>(loaded[static_cast<size_t>(i)]),
              std::bit_cast<uint32_t>(expected))
        << DTypeName(dtype) << " element " << i << ": " << expected;
  }
}

void ExpectStores(const std::vector<float>& values, DType dtype) {
  const auto count = static_cast<int64_t>(values.size());
  const size_t bytes = DTypeBytes(dtype);
  std::vector<std::byte> stored(values.size() * bytes);
  std::vector<std::byte> expected(values.size() * bytes);
  StoreFloats(values.data(), count, dtype, stored.data());
  for (int64_t i = 0; i < count; ++i) {
    StoreFromFloat(expected.data(), dtype, i, values[static_cast<size_t>(i)]);
    ASSERT_EQ(std::memcmp(stored.data() + i * bytes, expected.data() + i * bytes, bytes), 0)
        << DTypeName(dtype) << " element " << i << ": " << std::hexfloat
        << values[static_cast<size_t>(i)];
  }
}

TEST_F(InstructionSetsTest, LoadEveryBitPattern) {
  std::vector<std::byte> bytes;
  for (int code = 0; code < 256; ++code) bytes.push_back(static_cast<std::byte>(code));
  std::vector<std::byte> words;
  for (int word = 0; word < 65536; ++word) {
    words.push_back(static_cast<std::byte>(word & 0xFF));
    words.push_back(static_cast<std::byte>(word >> 8));
  }
  ForEach([&] {
    ExpectLoads(bytes, DType::kF8E4M3);
    ExpectLoads(bytes, DType::kI8);
    ExpectLoads(words, DType::kF16);
    ExpectLoads(words, DType::kBF16);
    ExpectLoads(words, DType::kF32);
  });
}

// Each value of the target type and the midpoint to its neighbour, with the floats next to both.
TEST_F(InstructionSetsTest, StoreRoundsAsTheHostDoes) {
  std::vector<float> values;
  const auto add_with_neighbours = [&](float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (const uint32_t neighbour : {bits - 1, bits, bits + 1}) {
      values.push_back(std::bit_cast<float>(neighbour));
    }
  };
  for (uint32_t word = 0; word < 65536; word += 3) {
    const auto half = static_cast<uint16_t>(word);
    for (const float value : {F16ToFloat(half), BF16ToFloat(half)}) add_with_neighbours(value);
    const float next = F16ToFloat(static_cast<uint16_t>(half + 1));
    add_with_neighbours((F16ToFloat(half) + next) / 2);
    add_with_neighbours(std::bit_cast<float>((word << 16) + 0x8000u));
  }
  for (int code = 0; code < 255; ++code) {
    const float value = F8E4M3ToFloat(static_cast<uint8_t>(code));
    const float next = F8E4M3ToFloat(static_cast<uint8_t>(code + 1));
    add_with_neighbours(value);
    add_with_neighbours((value + next) / 2);
    add_with_neighbours(static_cast<float>(code - 128) + 0.5f);
  }
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.Bits())));
  }
  ForEach([&] {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8}) {
      ExpectStores(values, dtype);
    }
  });
}

TEST_F(InstructionSetsTest, ShortArraysAreLeftAloneBehindTheirEnd) {
  ForEach([&] {
    for (const DType dtype : {DType::kF16, DType::kF8E4M3}) {
      for (int64_t count = 0; count < 40; ++count) {
        const std::vector<float> values(static_cast<size_t>(count), 1.5f);
        const std::byte canary{0xA7};
        std::vector<std::byte> stored(static_cast<size_t>(count) * DTypeBytes(dtype) + 1, canary);
        StoreFloats(values.data(), count, dtype, stored.data());
        EXPECT_EQ(stored.back(), canary) << count;
        std::vector<float> loaded(static_cast<size_t>(count) + 1, -7.0f);
        LoadFloats(stored.data(), dtype, count, loaded.data());
        EXPECT_EQ(loaded.back(), -7.0f) << count;
        loaded.pop_back();
        EXPECT_EQ(loaded, values) << count;
      }
    }
  });
}

TEST_F(InstructionSetsTest, DecodeAndMultiplyEveryFormat) {
  constexpr int64_t kN = 29;
  constexpr int64_t kK = 607;
  constexpr int64_t kM = 5;
  const auto& device = conformance::DevicesOf(conformance::AllBackends()[0])[0];
  const HostMatrix x = conformance::RandomActivations(DType::kF32, kM, kK, 2);
  const std::vector<double> doubles = conformance::ToDoubles(x);
  for (const conformance::Variant& variant : conformance::AllVariants()) {
    SCOPED_TRACE(variant.name);
    conformance::Variant plain = variant;
    plain.spec.has_bias = false;
    const CanonicalWeight weight = conformance::RandomWeight(plain.SpecOf(kN, kK), 3);
    const HostMatrix decoded = conformance::Decode(weight);
    const auto oracle = conformance::MatmulOracle(doubles, kM, decoded, {});
    const auto x_norms = conformance::RowNorms(doubles, kM);
    const auto w_norms = conformance::RowNorms(conformance::ToDoubles(decoded), kN);
    ForEach([&] {
      conformance::Runner runner(*device);
      const auto uploaded = runner.Upload(weight);
      EXPECT_EQ(runner.Dequantize(*uploaded, 0, kN, DType::kF32), decoded);
      const HostMatrix y = runner.Matmul(*uploaded, {.x = x}, DType::kF32);
      const auto report = nibble::testing::CompareMatmul(y.view(), oracle, x_norms, w_norms, kK);
      EXPECT_TRUE(report.ok()) << report.ToString();
    });
  }
}

}  // namespace
}  // namespace nibble::cpu
