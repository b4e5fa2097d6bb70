#include "server/checkpoint/repack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

// Transposes a tile of words, [kTileRows, kLanes]: `from` rows lie `stride` words apart, rows of 64
// bytes at `to` lie `to_stride` bytes apart.
template <bool kPast>
void TransposeLanes(const std::byte* from, int64_t stride, std::byte* to, int64_t to_stride) {
  for (int64_t row = 0; row < kTileRows; row += kLanes, from += 16 * stride) {
    const Words a = LoadWords(from);
    const Words b = LoadWords(from + 4 * stride);
    const Words c = LoadWords(from + 8 * stride);
    const Words d = LoadWords(from + 12 * stride);
    const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Words cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const std::array<Words, kLanes> columns = {
        __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
        __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
        __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
        __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
    for (int64_t i = 0; i < kLanes; ++i) {
      std::byte* const at = to + i * to_stride + 4 * row;
      if constexpr (kPast) {
        StorePast(at, columns[static_cast<size_t>(i)]);
      } else {
        std::memcpy(at, &columns[static_cast<size_t>(i)], sizeof(Words));
      }
    }
  }
}

// Transposes words [rows, cols] of `from`, `stride` words apart, rows <= kTileRows: column c
// becomes the first `bytes` bytes (at most 4 * rows) at `to` + c * to_stride.
void TransposeTile(const std::byte* from, int64_t stride, int64_t rows, int64_t cols, std::byte* to,
                   int64_t to_stride, int64_t bytes) {
  int64_t col = 0;
  if (rows == kTileRows && bytes == 4 * kTileRows) {
    const bool past = IsAligned(to, to_stride);
    for (; col + kLanes <= cols; col += kLanes) {
      if (past) {
        TransposeLanes<true>(from + 4 * col, stride, to + col * to_stride, to_stride);
      } else {
        TransposeLanes<false>(from + 4 * col, stride, to + col * to_stride, to_stride);
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
void ClearPadding(std::span<std::byte> codes, int64_t n, int64_t k) {
  if (k % 2 == 0) return;
  const int64_t row_bytes = CeilDiv(k, 2);
  for (int64_t row = 0; row < n; ++row) {
    codes[static_cast<size_t>((row + 1) * row_bytes - 1)] &= std::byte{0x0F};
  }
}

// Transposes eight words of eight nibbles each, in every lane: nibble j of word i goes to nibble i
// of word j. Halves, quarters and eighths are swapped in turn (Hacker's Delight, 7-3).
template <int kShift, uint32_t kMask>
void SwapNibbles(Words& low, Words& high) {
  const Words moved = ((low >> kShift) ^ high) & kMask;
  high ^= moved;
  low ^= moved << kShift;
}
void TransposeNibbles(std::array<Words, 8>& words) {
  auto& [a, b, c, d, e, f, g, h] = words;
  SwapNibbles<16, 0x0000FFFFu>(a, e);
  SwapNibbles<16, 0x0000FFFFu>(b, f);
  SwapNibbles<16, 0x0000FFFFu>(c, g);
  SwapNibbles<16, 0x0000FFFFu>(d, h);
  SwapNibbles<8, 0x00FF00FFu>(a, c);
  SwapNibbles<8, 0x00FF00FFu>(b, d);
  SwapNibbles<8, 0x00FF00FFu>(e, g);
  SwapNibbles<8, 0x00FF00FFu>(f, h);
  SwapNibbles<4, 0x0F0F0F0Fu>(a, b);
  SwapNibbles<4, 0x0F0F0F0Fu>(c, d);
  SwapNibbles<4, 0x0F0F0F0Fu>(e, f);
  SwapNibbles<4, 0x0F0F0F0Fu>(g, h);
}

// One block of eight inputs of AWQ's words [K, cols], rows `stride` words apart, of which the first
// `inputs` are there: the word of output 8c + j goes to out[j * out_stride + c].
void GatherBlock(const std::byte* from, int64_t stride, int64_t inputs, int64_t cols, uint32_t* out,
                 int64_t out_stride) {
  std::array<Words, 8> words{};
  int64_t col = 0;
  for (; inputs == 8 && col + kLanes <= cols; col += kLanes) {
    for (size_t i = 0; i < 8; ++i) {
      words[i] = LoadWords(from + 4 * (static_cast<int64_t>(i) * stride + col));
    }
    TransposeNibbles(words);
    for (size_t j = 0; j < 8; ++j) {
      std::memcpy(out + static_cast<int64_t>(j) * out_stride + col, &words[kAwqNibble[j]],
                  sizeof(Words));
    }
  }
  for (; col < cols; ++col) {
    words.fill(Words{});
    for (int64_t i = 0; i < inputs; ++i) {
      words[static_cast<size_t>(i)][0] = WordAt(from, i * stride + col);
    }
    TransposeNibbles(words);
    for (size_t j = 0; j < 8; ++j) {
      out[static_cast<int64_t>(j) * out_stride + col] = words[kAwqNibble[j]][0];
    }
  }
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

void CodesFromColumnWords(std::span<const std::byte> words, int64_t n, int64_t k,
                          std::span<std::byte> codes) {
  const int64_t row_bytes = CeilDiv(k, 2);
  const int64_t word_rows = CeilDiv(k, 8);
  for (int64_t first = 0; first < n; first += kPanelColumns) {
    const int64_t cols = std::min(kPanelColumns, n - first);
    for (int64_t top = 0; top < word_rows; top += kTileRows) {
      TransposeTile(words.data() + 4 * (top * n + first), n, std::min(kTileRows, word_rows - top),
                    cols, codes.data() + first * row_bytes + 4 * top, row_bytes,
                    std::min(4 * kTileRows, row_bytes - 4 * top));
    }
  }
  FinishStores();
  ClearPadding(codes, n, k);
}

void CodesFromInterleavedWords(std::span<const std::byte> words, int64_t n, int64_t k,
                               std::span<std::byte> codes) {
  constexpr int64_t kPanelWords = kPanelColumns / 2;
  const int64_t row_bytes = CeilDiv(k, 2);
  const int64_t stride = n / 8;
  // [kTileRows][8][kPanelWords]: what GPTQ would store, sorted by the place within a word.
  std::vector<uint32_t> panel(kTileRows * 8 * kPanelWords);
  for (int64_t first = 0; first < stride; first += kPanelWords) {
    const int64_t cols = std::min(kPanelWords, stride - first);
    for (int64_t input = 0; input < k; input += kInputsPerTile) {
      const int64_t blocks = std::min(kTileRows, CeilDiv(k - input, 8));
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t at = input + 8 * block;
        GatherBlock(words.data() + 4 * (at * stride + first), stride, std::min<int64_t>(8, k - at),
                    cols, panel.data() + block * 8 * kPanelWords, kPanelWords);
      }
      for (int64_t j = 0; j < 8; ++j) {
        TransposeTile(reinterpret_cast<const std::byte*>(panel.data() + j * kPanelWords),
                      8 * kPanelWords, blocks, cols,
                      codes.data() + (8 * first + j) * row_bytes + input / 2, 8 * row_bytes,
                      std::min(4 * kTileRows, row_bytes - input / 2));
      }
    }
  }
  FinishStores();
}

void CodesFromRowWords(std::span<const std::byte> words, int64_t n, int64_t k,
                       std::span<std::byte> codes) {
  const int64_t row_bytes = CeilDiv(k, 2);
  const int64_t stored_bytes = 4 * CeilDiv(k, 8);
  for (int64_t row = 0; row < n; ++row) {
    std::memcpy(codes.data() + row * row_bytes, words.data() + row * stored_bytes,
                static_cast<size_t>(row_bytes));
  }
  ClearPadding(codes, n, k);
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

void PackedZeros::Unpack(std::span<std::byte> out) const {
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      out[static_cast<size_t>(row * groups + group)] =
          static_cast<std::byte>(ZeroPoint(row, group));
    }
  }
}

}  // namespace nibble::checkpoint
