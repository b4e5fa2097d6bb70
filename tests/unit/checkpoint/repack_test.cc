// The repacking of INT4 layouts against the plainest reading of each, in shapes that leave a rest
// at every step of the fast paths.
#include "server/checkpoint/repack.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "nibble/tensor.h"

namespace nibble::checkpoint {
namespace {

std::vector<std::byte> RandomBytes(int64_t count) {
  std::mt19937 random(31);
  std::vector<std::byte> bytes;
  for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(random()));
  return bytes;
}

int Nibble(const std::vector<std::byte>& words, int64_t word, int64_t nibble) {
  const auto byte = static_cast<int>(words[static_cast<size_t>(4 * word + nibble / 2)]);
  return nibble % 2 == 0 ? byte & 15 : byte >> 4;
}

// code(row, input) of canonical codes; the padding of an odd row must be 0.
template <typename Code>
void ExpectCodes(const std::vector<std::byte>& codes, int64_t n, int64_t k, const Code& code) {
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t input = 0; input < (k + 1) / 2 * 2; ++input) {
      const auto byte =
          static_cast<int>(codes[static_cast<size_t>(row * CeilDiv(k, 2) + input / 2)]);
      const int received = input % 2 == 0 ? byte & 15 : byte >> 4;
      ASSERT_EQ(received, input < k ? code(row, input) : 0) << "row " << row << " input " << input;
    }
  }
}

using Unpack = void (*)(std::span<const std::byte> words, int64_t n, const CodeTile& tile,
                        std::byte* out, int64_t stride, bool past);

// The codes by tiles of 32 x 64 that are put together.
std::vector<std::byte> ByTiles(Unpack unpack, const std::vector<std::byte>& words, int64_t n,
                               int64_t k) {
  std::vector<std::byte> codes(static_cast<size_t>(n * CeilDiv(k, 2)), std::byte{0xEE});
  for (int64_t row = 0; row < n; row += 32) {
    for (int64_t first = 0; first < k; first += 64) {
      const CodeTile tile = {row, std::min<int64_t>(32, n - row), first,
                             std::min<int64_t>(64, k - first)};
      std::vector<std::byte> part(static_cast<size_t>(tile.rows * 37), std::byte{0xEE});
      unpack(words, n, tile, part.data(), 37, false);
      for (int64_t i = 0; i < tile.rows; ++i) {
        std::copy_n(part.begin() + i * 37, CeilDiv(tile.inputs, 2),
                    codes.begin() + (row + i) * CeilDiv(k, 2) + first / 2);
      }
    }
  }
  return codes;
}

class RepackTest : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  const int64_t n_ = std::get<0>(GetParam());
  const int64_t k_ = std::get<1>(GetParam());
  std::vector<std::byte> codes_ =
      std::vector<std::byte>(static_cast<size_t>(n_ * CeilDiv(k_, 2)), std::byte{0xEE});
};

TEST_P(RepackTest, ColumnWords) {
  const auto words = RandomBytes(4 * CeilDiv(k_, 8) * n_);
  CodesFromColumnWords(words, n_, {.rows = n_, .inputs = k_}, codes_.data(), CeilDiv(k_, 2), true);
  ExpectCodes(codes_, n_, k_, [&](int64_t row, int64_t input) {
    return Nibble(words, input / 8 * n_ + row, input % 8);
  });
  EXPECT_EQ(ByTiles(CodesFromColumnWords, words, n_, k_), codes_);
}

TEST_P(RepackTest, InterleavedWords) {
  constexpr int kNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  const int64_t n = CeilDiv(n_, 8) * 8;  // words hold eight outputs
  const auto words = RandomBytes(k_ * n / 2);
  std::vector<std::byte> codes(static_cast<size_t>(n * CeilDiv(k_, 2)), std::byte{0xEE});
  CodesFromInterleavedWords(words, n, {.rows = n, .inputs = k_}, codes.data(), CeilDiv(k_, 2),
                            true);
  ExpectCodes(codes, n, k_, [&](int64_t row, int64_t input) {
    return Nibble(words, input * (n / 8) + row / 8, kNibble[row % 8]);
  });
  EXPECT_EQ(ByTiles(CodesFromInterleavedWords, words, n, k_), codes);
}

TEST_P(RepackTest, RowWords) {
  const auto words = RandomBytes(4 * CeilDiv(k_, 8) * n_);
  CodesFromRowWords(words, n_, k_, codes_);
  ExpectCodes(codes_, n_, k_, [&](int64_t row, int64_t input) {
    return Nibble(words, row * CeilDiv(k_, 8) + input / 8, input % 8);
  });
}

TEST_P(RepackTest, Transpose) {
  for (size_t size : {2u, 4u}) {
    const auto from = RandomBytes(n_ * k_ * static_cast<int64_t>(size));
    std::vector<std::byte> out(from.size());
    checkpoint::Transpose(from, n_, k_, size, out);
    for (int64_t row = 0; row < n_; ++row) {
      for (int64_t col = 0; col < k_; ++col) {
        ASSERT_EQ(std::memcmp(out.data() + (col * n_ + row) * static_cast<int64_t>(size),
                              from.data() + (row * k_ + col) * static_cast<int64_t>(size), size),
                  0)
            << row << ", " << col;
      }
    }
  }
}

TEST_P(RepackTest, ZeroPoints) {
  using Layout = PackedZeros::Layout;
  const int64_t groups = CeilDiv(k_, 32);
  for (Layout layout : {Layout::kAlongColumns, Layout::kInterleaved, Layout::kAlongRows}) {
    const auto words = RandomBytes(4 * CeilDiv(n_, 8) * groups);
    const PackedZeros zeros = {layout, words, n_, groups, 1};
    std::vector<std::byte> out(static_cast<size_t>(n_ * groups));
    zeros.Unpack(out);
    int64_t counted = 0;
    for (int value = 0; value < 16; ++value) {
      int64_t expected = 0;
      for (int64_t row = 0; row < n_; ++row) {
        for (int64_t g = 0; g < groups; ++g) {
          if (zeros.Field(row, g) != value) continue;
          ++expected;
          ASSERT_EQ(static_cast<int>(out[static_cast<size_t>(row * groups + g)]), (value + 1) % 16);
        }
      }
      EXPECT_EQ(zeros.Count(value), expected) << value;
      counted += expected;
    }
    EXPECT_EQ(counted, n_ * groups);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RepackTest,
                         ::testing::Combine(::testing::Values(1, 7, 8, 40, 264, 300, 1032),
                                            ::testing::Values(1, 8, 31, 128, 200, 300)));

}  // namespace
}  // namespace nibble::checkpoint
