#include "server/checkpoint/repack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

namespace nibble::checkpoint {
namespace {

// Words are copied byte by byte, which is only right in the file's own order.
static_assert(std::endian::native == std::endian::little);

// Nibble of a word, from the low end, that holds its column j (casper-hansen/AutoAWQ,
// awq/utils/packing_utils.py).
constexpr std::array<int, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

// Output rows handled together: the words of a file's row that share a cache line.
constexpr int64_t kTile = 16;
// The same where a word holds eight output rows.
constexpr int64_t kWordTile = 4;

uint32_t WordAt(std::span<const std::byte> words, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, words.data() + 4 * index, 4);
  return word;
}

// The high nibble of an odd row's last byte belongs to no input.
void ClearPadding(std::vector<std::byte>* codes, int64_t n, int64_t k) {
  if (k % 2 == 0) return;
  const int64_t row_bytes = CeilDiv(k, 2);
  for (int64_t row = 0; row < n; ++row) {
    (*codes)[static_cast<size_t>((row + 1) * row_bytes - 1)] &= std::byte{0x0F};
  }
}

}  // namespace

HostBytes CodesFromColumnWords(std::span<const std::byte> words, int64_t n, int64_t k) {
  const int64_t row_bytes = CeilDiv(k, 2);
  std::vector<std::byte> codes(static_cast<size_t>(n * row_bytes));
  for (int64_t first = 0; first < n; first += kTile) {
    const int64_t last = std::min(first + kTile, n);
    for (int64_t word_row = 0; word_row < CeilDiv(k, 8); ++word_row) {
      const auto bytes = static_cast<size_t>(std::min<int64_t>(4, row_bytes - 4 * word_row));
      for (int64_t row = first; row < last; ++row) {
        std::memcpy(codes.data() + row * row_bytes + 4 * word_row,
                    words.data() + 4 * (word_row * n + row), bytes);
      }
    }
  }
  ClearPadding(&codes, n, k);
  return HostBytes(std::move(codes));
}

HostBytes CodesFromInterleavedWords(std::span<const std::byte> words, int64_t n, int64_t k) {
  const int64_t row_bytes = CeilDiv(k, 2);
  const int64_t word_columns = n / 8;
  std::vector<std::byte> codes(static_cast<size_t>(n * row_bytes));
  for (int64_t first = 0; first < word_columns; first += kWordTile) {
    const int64_t last = std::min(first + kWordTile, word_columns);
    for (int64_t pair = 0; pair < row_bytes; ++pair) {
      for (int64_t column = first; column < last; ++column) {
        const uint32_t even = WordAt(words, 2 * pair * word_columns + column);
        const uint32_t odd =
            2 * pair + 1 < k ? WordAt(words, (2 * pair + 1) * word_columns + column) : 0;
        for (int64_t j = 0; j < 8; ++j) {
          const int shift = 4 * kAwqNibble[static_cast<size_t>(j)];
          codes[static_cast<size_t>((8 * column + j) * row_bytes + pair)] =
              static_cast<std::byte>((even >> shift & 15u) | (odd >> shift & 15u) << 4);
        }
      }
    }
  }
  return HostBytes(std::move(codes));
}

HostBytes CodesFromRowWords(std::span<const std::byte> words, int64_t n, int64_t k) {
  const int64_t row_bytes = CeilDiv(k, 2);
  const int64_t stored_bytes = 4 * CeilDiv(k, 8);
  std::vector<std::byte> codes(static_cast<size_t>(n * row_bytes));
  for (int64_t row = 0; row < n; ++row) {
    std::memcpy(codes.data() + row * row_bytes, words.data() + row * stored_bytes,
                static_cast<size_t>(row_bytes));
  }
  ClearPadding(&codes, n, k);
  return HostBytes(std::move(codes));
}

HostBytes Transposed(std::span<const std::byte> elements, int64_t rows, int64_t cols,
                     size_t element_bytes) {
  std::vector<std::byte> out(elements.size());
  const auto size = static_cast<int64_t>(element_bytes);
  for (int64_t first = 0; first < cols; first += kTile) {
    const int64_t last = std::min(first + kTile, cols);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = first; col < last; ++col) {
        std::memcpy(out.data() + size * (col * rows + row),
                    elements.data() + size * (row * cols + col), element_bytes);
      }
    }
  }
  return HostBytes(std::move(out));
}

int PackedZeros::Field(int64_t row, int64_t group) const {
  const auto lane = static_cast<size_t>(row % 8);
  switch (layout) {
    case Layout::kAlongColumns:
      return WordAt(data, group * CeilDiv(n, 8) + row / 8) >> (4 * lane) & 15u;
    case Layout::kInterleaved:
      return WordAt(data, group * CeilDiv(n, 8) + row / 8) >> (4 * kAwqNibble[lane]) & 15u;
    case Layout::kAlongRows:
      return WordAt(data, row / 8 * groups + group) >> (4 * lane) & 15u;
    case Layout::kSigned:
      return (static_cast<int>(data[static_cast<size_t>(row * groups + group)]) + 8) & 15;
  }
  return 0;
}

std::array<int64_t, 16> PackedZeros::Histogram() const {
  std::array<int64_t, 16> counts{};
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t row = 0; row < n; ++row) {
      ++counts[static_cast<size_t>(Field(row, group))];
    }
  }
  return counts;
}

HostBytes PackedZeros::Unpacked() const {
  std::vector<std::byte> zeros(static_cast<size_t>(n * groups));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      zeros[static_cast<size_t>(row * groups + group)] =
          static_cast<std::byte>(ZeroPoint(row, group));
    }
  }
  return HostBytes(std::move(zeros));
}

}  // namespace nibble::checkpoint
