#include "server/checkpoint/repack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "nibble/nibbles.h"
#include "nibble/tensor.h"

namespace nibble::checkpoint {
namespace {

// Words are copied byte by byte, which is only right in the file's own order.
static_assert(std::endian::native == std::endian::little);

// Nibble of a word, from the low end, that holds its column j (casper-hansen/AutoAWQ,
// awq/utils/packing_utils.py).
constexpr std::array<size_t, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

// A tile of kTileRows words of every column becomes a cache line of each output row. Panels of
// columns keep the output rows in work within reach of the TLB.
constexpr int64_t kTileRows = 16;
constexpr int64_t kPanelColumns = 512;
constexpr int64_t kPanelWords = 64;  // of eight columns
constexpr int64_t kInputsPerTile = 8 * kTileRows;

// Four words side by side (a vector type of GCC and Clang).
using Words = uint32_t __attribute__((vector_size(16)));
constexpr int64_t kLanes = 4;

uint32_t WordAt(const std::byte* words, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, words + 4 * index, 4);
  return word;
}

Words LoadWords(const std::byte* from) {
  Words words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}

// Stores past the caches where the machine can: what is written is not read again before it has
// long left them, and lines that are written whole need not be fetched. `to` is aligned to 16
// bytes.
void StorePast(std::byte* to, const Words& words) {
#if defined(__SSE2__)
  __m128i bits;
  std::memcpy(&bits, &words, sizeof(bits));
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), bits);
#else
  std::memcpy(to, &words, sizeof(words));
#endif
}

// Ends what StorePast began, for other threads.
void FinishStores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

bool IsAligned(const std::byte* to, int64_t stride) {
  return (reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(stride)) % sizeof(Words) == 0;
}

// Transposes words [kLanes, kLanes] of `from`, `stride` words apart, to rows of 16 bytes,
// `to_stride` bytes apart.
void TransposeLanes(const std::byte* from, int64_t stride, std::byte* to, int64_t to_stride) {
  const Words a = LoadWords(from);
  const Words b = LoadWords(from + 4 * stride);
  const Words c = LoadWords(from + 8 * stride);
  const Words d = LoadWords(from + 12 * stride);
  const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const std::array<Words, kLanes> columns = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                                             __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                                             __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                                             __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (const Words& column : columns) {
    std::memcpy(to, &column, sizeof(Words));
    to += to_stride;
  }
}

// The same for [kTileRows, kTileRows]. Each line of `from` is read whole, one after the other:
// lines a power of two apart share a few places in the cache, too few for all of them. `ahead`: the
// lines of the next kTileRows rows are fetched meanwhile, since no prefetcher sees such strides.
void TransposeSquare(const std::byte* from, int64_t stride, std::byte* to, int64_t to_stride,
                     bool ahead) {
  for (int64_t row = 0; row < kTileRows; row += kLanes) {
    for (int64_t i = 0; ahead && i < kLanes; ++i) {
      __builtin_prefetch(from + 4 * (row + kTileRows + i) * stride, 0, 2);
    }
    for (int64_t col = 0; col < kTileRows; col += kLanes) {
      TransposeLanes(from + 4 * (row * stride + col), stride, to + col * to_stride + 4 * row,
                     to_stride);
    }
  }
}

// Transposes words [rows, cols] of `from`, `stride` words apart, rows <= kTileRows: column c
// becomes the first `bytes` bytes (at most 4 * rows) at `to` + c * to_stride. `past` and
// `ahead`: see StorePast and TransposeSquare.
void TransposeTile(const std::byte* from, int64_t stride, int64_t rows, int64_t cols, std::byte* to,
                   int64_t to_stride, int64_t bytes, bool past, bool ahead) {
  constexpr int64_t kLine = 4 * kTileRows;
  int64_t col = 0;
  if (rows == kTileRows && bytes == kLine) {
    past = past && IsAligned(to, to_stride);
    for (; col + kTileRows <= cols; col += kTileRows) {
      if (!past) {
        TransposeSquare(from + 4 * col, stride, to + col * to_stride, to_stride, ahead);
        continue;
      }
      std::array<std::byte, kLine * kTileRows> square;
      TransposeSquare(from + 4 * col, stride, square.data(), kLine, ahead);
      for (int64_t i = 0; i < kLine * kTileRows; i += 16) {
        StorePast(to + (col + i / kLine) * to_stride + i % kLine, LoadWords(square.data() + i));
      }
    }
  }
  std::array<uint32_t, kTileRows> line;
  for (; col < cols; ++col) {
    for (int64_t row = 0; row < rows; ++row) {
      line[static_cast<size_t>(row)] = WordAt(from, row * stride + col);
    }
    std::memcpy(to + col * to_stride, line.data(), static_cast<size_t>(bytes));
  }
}

// The high nibble of an odd row's last byte belongs to no input.
void ClearPadding(std::byte* codes, int64_t stride, int64_t n, int64_t k) {
  if (k % 2 == 0) return;
  for (int64_t row = 0; row < n; ++row) codes[row * stride + k / 2] &= std::byte{0x0F};
}

// One block of eight inputs of AWQ's words, rows `row_bytes` apart, of which the first `inputs` are
// there: word c with the codes that were in nibble j goes to word c of row j of `to`.
constexpr int64_t kBlockBytes = 4 * 8 * kPanelWords;
void SortBlock(const std::byte* from, int64_t row_bytes, int64_t inputs, int64_t cols,
               std::byte* to) {
  if (inputs >= 8) {
    TransposeNibbles(from, row_bytes, cols, to, 4 * kPanelWords,
                     inputs >= 16 ? from + 8 * row_bytes : nullptr);
    return;
  }
  std::array<std::byte, kBlockBytes> padded{};
  for (int64_t i = 0; i < inputs; ++i) {
    std::memcpy(padded.data() + 4 * i * kPanelWords, from + i * row_bytes,
                static_cast<size_t>(4 * cols));
  }
  TransposeNibbles(padded.data(), 4 * kPanelWords, cols, to, 4 * kPanelWords, nullptr);
}

template <typename T>
void TransposeElements(const std::byte* from, int64_t rows, int64_t cols, std::byte* out) {
  constexpr int64_t kSize = sizeof(T);
  for (int64_t first = 0; first < cols; first += kPanelColumns) {
    const int64_t last = std::min(first + kPanelColumns, cols);
    for (int64_t top = 0; top < rows; top += kTileRows) {
      const int64_t bottom = std::min(top + kTileRows, rows);
      for (int64_t col = first; col < last; ++col) {
        for (int64_t row = top; row < bottom; ++row) {
          std::memcpy(out + kSize * (col * rows + row), from + kSize * (row * cols + col), kSize);
        }
      }
    }
  }
}

// How many nibbles of `bytes` are `value`.
int64_t CountNibbles(std::span<const std::byte> bytes, int value) {
  constexpr uint64_t kOnes = 0x1111111111111111u;
  const uint64_t wanted = kOnes * static_cast<uint64_t>(value);
  int64_t count = 0;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t differs = 0;
    std::memcpy(&differs, bytes.data() + i, 8);
    differs ^= wanted;
    differs |= differs >> 2;
    differs |= differs >> 1;
    count += std::popcount(~differs & kOnes);
  }
  for (; i < bytes.size(); ++i) {
    const auto byte = static_cast<int>(bytes[i]);
    count += ((byte & 15) == value) + ((byte >> 4) == value);
  }
  return count;
}

}  // namespace

void CodesFromColumnWords(std::span<const std::byte> words, int64_t n, const CodeTile& tile,
                          std::byte* out, int64_t stride, bool past) {
  const int64_t row_bytes = CeilDiv(tile.inputs, 2);
  const int64_t word_rows = CeilDiv(tile.inputs, 8);
  const std::byte* const from = words.data() + 4 * (tile.k / 8 * n + tile.row);
  for (int64_t first = 0; first < tile.rows; first += kPanelColumns) {
    const int64_t cols = std::min(kPanelColumns, tile.rows - first);
    for (int64_t top = 0; top < word_rows; top += kTileRows) {
      TransposeTile(from + 4 * (top * n + first), n, std::min(kTileRows, word_rows - top), cols,
                    out + first * stride + 4 * top, stride,
                    std::min(4 * kTileRows, row_bytes - 4 * top), past,
                    top + 2 * kTileRows <= word_rows);
    }
  }
  if (past) FinishStores();
  ClearPadding(out, stride, tile.rows, tile.inputs);
}

void CodesFromInterleavedWords(std::span<const std::byte> words, int64_t n, const CodeTile& tile,
                               std::byte* out, int64_t stride, bool past) {
  const int64_t row_bytes = CeilDiv(tile.inputs, 2);
  const int64_t columns = tile.rows / 8;
  const int64_t row = n / 2;  // bytes of one
  const std::byte* const from = words.data() + tile.k * row + tile.row / 2;
  // [kTileRows][8][kPanelWords]: what GPTQ would store, sorted by the nibble within a word.
  std::array<std::byte, 4 * kTileRows * 8 * kPanelWords> panel;
  for (int64_t input = 0; input < tile.inputs; input += kInputsPerTile) {
    const int64_t blocks = std::min(kTileRows, CeilDiv(tile.inputs - input, 8));
    for (int64_t first = 0; first < columns; first += kPanelWords) {
      const int64_t cols = std::min(kPanelWords, columns - first);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t at = input + 8 * block;
        SortBlock(from + at * row + 4 * first, row, tile.inputs - at, cols,
                  panel.data() + block * kBlockBytes);
      }
      for (int64_t j = 0; j < 8; ++j) {
        TransposeTile(panel.data() + 4 * kPanelWords * kAwqNibble[static_cast<size_t>(j)],
                      kBlockBytes / 4, blocks, cols, out + (8 * first + j) * stride + input / 2,
                      8 * stride, std::min(4 * kTileRows, row_bytes - input / 2), past, false);
      }
    }
  }
  if (past) FinishStores();
}

void CodesFromRowWords(std::span<const std::byte> words, int64_t n, int64_t k,
                       std::span<std::byte> codes) {
  const int64_t row_bytes = CeilDiv(k, 2);
  const int64_t stored_bytes = 4 * CeilDiv(k, 8);
  for (int64_t row = 0; row < n; ++row) {
    std::memcpy(codes.data() + row * row_bytes, words.data() + row * stored_bytes,
                static_cast<size_t>(row_bytes));
  }
  ClearPadding(codes.data(), row_bytes, n, k);
}

void Transpose(std::span<const std::byte> elements, int64_t rows, int64_t cols,
               size_t element_bytes, std::span<std::byte> out) {
  if (element_bytes == 2) {
    TransposeElements<uint16_t>(elements.data(), rows, cols, out.data());
  } else {
    TransposeElements<uint32_t>(elements.data(), rows, cols, out.data());
  }
}

int PackedZeros::Field(int64_t row, int64_t group) const {
  const auto lane = static_cast<size_t>(row % 8);
  switch (layout) {
    case Layout::kAlongColumns:
      return WordAt(data.data(), group * CeilDiv(n, 8) + row / 8) >> (4 * lane) & 15u;
    case Layout::kInterleaved:
      return WordAt(data.data(), group * CeilDiv(n, 8) + row / 8) >> (4 * kAwqNibble[lane]) & 15u;
    case Layout::kAlongRows:
      return WordAt(data.data(), row / 8 * groups + group) >> (4 * lane) & 15u;
    case Layout::kSigned:
      return (static_cast<int>(data[static_cast<size_t>(row * groups + group)]) + 8) & 15;
  }
  return 0;
}

int64_t PackedZeros::Count(int value) const {
  const int64_t full = layout == Layout::kSigned ? 0 : n / 8 * 8;  // rows in words of eight fields
  int64_t count = 0;
  if (layout == Layout::kAlongRows) {
    count = CountNibbles(data.first(static_cast<size_t>(full / 2 * groups)), value);
  } else {
    for (int64_t group = 0; group < groups && full > 0; ++group) {
      const auto begin = static_cast<size_t>(4 * group * CeilDiv(n, 8));
      count += CountNibbles(data.subspan(begin, static_cast<size_t>(full / 2)), value);
    }
  }
  for (int64_t row = full; row < n; ++row) {
    for (int64_t group = 0; group < groups; ++group) count += Field(row, group) == value;
  }
  return count;
}

void PackedZeros::UnpackWords(std::span<std::byte> out) const {
  const auto nibble_of = [this](size_t lane) {
    return layout == Layout::kInterleaved ? kAwqNibble[lane] : lane;
  };
  const int64_t words = n / 8;
  // A cache line of words at a time, whose rows stay in the nearest cache.
  for (int64_t first = 0; first < words; first += kTileRows) {
    const int64_t last = std::min(first + kTileRows, words);
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t word = first; word < last; ++word) {
        const uint32_t fields = WordAt(data.data(), group * CeilDiv(n, 8) + word);
        std::byte* to = out.data() + 8 * word * groups + group;
        for (size_t lane = 0; lane < 8; ++lane, to += groups) {
          const uint32_t field = fields >> (4 * nibble_of(lane));
          *to = static_cast<std::byte>((field + static_cast<uint32_t>(add)) & 15u);
        }
      }
    }
  }
}

void PackedZeros::Unpack(std::span<std::byte> out) const {
  int64_t first = 0;
  if (layout == Layout::kAlongColumns || layout == Layout::kInterleaved) {
    UnpackWords(out);
    first = n / 8 * 8;
  }
  for (int64_t row = first; row < n; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      out[static_cast<size_t>(row * groups + group)] =
          static_cast<std::byte>(ZeroPoint(row, group));
    }
  }
}

}  // namespace nibble::checkpoint
