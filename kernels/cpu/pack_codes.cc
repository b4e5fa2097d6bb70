#include "kernels/cpu/pack_codes.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "nibble/nibbles.h"

namespace nibble::cpu {
namespace {

// Sixteen bytes side by side (a vector type of GCC and Clang).
using Bytes = uint8_t __attribute__((vector_size(16)));

// Stores past the caches where the machine can, for rows that are written piece by piece: a weight
// is far larger than they are, and lines that are written whole need not be fetched. `to` is
// aligned to 16 bytes. Rows that are written one after the other are stored plainly: the system has
// just cleared their pages, which are in the caches (NF4 loads at 5.6 GB/s in place of 4.9).
void StorePast(uint8_t* to, const Bytes& bytes) {
#if defined(__SSE2__)
  __m128i bits;
  std::memcpy(&bits, &bytes, sizeof(bits));
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), bits);
#else
  std::memcpy(to, &bytes, sizeof(bytes));
#endif
}

// Ends what StorePast began, for other threads.
void FinishStores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Two 4-bit codes of a flat array: NF4 keeps the even one in the high nibble, INT4 in the low one.
template <bool kEvenIsHigh>
void UnpackCodes(const uint8_t* packed, int64_t first, int64_t count, uint8_t* codes) {
  constexpr int kEvenShift = kEvenIsHigh ? 4 : 0;
  int64_t i = 0;
  if (first % 2 != 0 && count > 0) codes[i++] = (packed[first / 2] >> (4 - kEvenShift)) & 15;
  const uint8_t* bytes = packed + (first + i) / 2;
  for (; i + 2 <= count; i += 2, ++bytes) {
    codes[i] = (*bytes >> kEvenShift) & 15;
    codes[i + 1] = (*bytes >> (4 - kEvenShift)) & 15;
  }
  if (i < count) codes[i] = (*bytes >> kEvenShift) & 15;
}

// Whole groups of kDecodeGroup codes that begin with a byte: code j of the first sixteen goes to
// the low nibble of byte j, code 16 + j to its high one.
template <bool kEvenIsHigh, bool kPast>
void PackGroups(const uint8_t* from, int64_t groups, uint8_t* to) {
  static_assert(kDecodeGroup == 2 * sizeof(Bytes));
  for (int64_t group = 0; group < groups; ++group, from += sizeof(Bytes), to += sizeof(Bytes)) {
    Bytes packed;
    std::memcpy(&packed, from, sizeof(packed));
    const Bytes low = packed & 15;
    const Bytes high = packed >> 4;
    const Bytes even = kEvenIsHigh ? high : low;
    const Bytes odd = kEvenIsHigh ? low : high;
    // The first half of each holds codes below sixteen, the second those above.
    const Bytes first =
        __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Bytes second = __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                 13, 29, 14, 30, 15, 31);
    packed = first | second << 4;
    if constexpr (kPast) {
      StorePast(to, packed);
    } else {
      std::memcpy(to, &packed, sizeof(packed));
    }
  }
}

// `count` codes of a row, of which the first is number `first` of `from`, in groups of kDecodeGroup
// padded with zeros. `row` is scratch for as many, padded, with zeros beyond them.
template <bool kEvenIsHigh, bool kPast>
void PackRow(const uint8_t* from, int64_t first, int64_t count, uint8_t* row, uint8_t* to) {
  int64_t k = 0;
  if (first % 2 == 0) {
    const int64_t groups = count / kDecodeGroup;
    PackGroups<kEvenIsHigh, kPast>(from + first / 2, groups, to);
    k = groups * kDecodeGroup;
  }
  UnpackCodes<kEvenIsHigh>(from, first + k, count - k, row + k);
  for (; k < count; k += kDecodeGroup) {
    for (int64_t j = 0; j < 16; ++j) {
      to[k / 2 + j] = static_cast<uint8_t>(row[k + j] | (row[k + 16 + j] << 4));
    }
  }
}

// Act-order: packs rows of INT4 codes with their columns sorted. Eight rows at a time are turned so
// that a word holds the codes of one column; words are sorted, and turned back.
class ColumnSorter {
 public:
  static constexpr int64_t kRows = 8;

  explicit ColumnSorter(const PackedWeight& packed)
      : inputs_(packed.spec.k),
        words_(CeilDiv(inputs_, 8)),
        packed_words_(packed.k_padded / 8),
        order_(static_cast<size_t>(packed.k_padded)),
        columns_(static_cast<size_t>(8 * words_ + 1), 0),
        sorted_(order_.size()),
        rows_(4 * order_.size()) {
    // Nibble i of word c in a packed row holds this position.
    uint32_t* order = order_.data();
    for (int64_t i = 0; i < 8; ++i) {
      for (int64_t c = 0; c < packed_words_; ++c, ++order) {
        const int64_t position = c / 4 * kDecodeGroup + c % 4 * 4 + i / 2 + i % 2 * 16;
        const int64_t column = position < inputs_ ? packed.columns[position] : -1;
        // The last word is zero.
        *order = static_cast<uint32_t>(column < 0 ? 8 * words_ : column % 8 * words_ + column / 8);
      }
    }
  }

  // Up to kRows rows of canonical codes, `stride` bytes apart, to rows of packed_words_ words.
  void Pack(const uint8_t* from, int64_t stride, int64_t rows, uint8_t* to) {
    const int64_t row_bytes = CeilDiv(inputs_, 2);
    if (rows < kRows || row_bytes % 4 != 0) {
      padded_.assign(static_cast<size_t>(4 * kRows * words_), 0);
      for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(padded_.data() + 4 * row * words_, from + row * stride,
                    static_cast<size_t>(row_bytes));
      }
      from = padded_.data();
      stride = 4 * words_;
    }
    TransposeNibbles(reinterpret_cast<const std::byte*>(from), stride, words_,
                     reinterpret_cast<std::byte*>(columns_.data()), 4 * words_, nullptr);
    for (size_t i = 0; i < order_.size(); ++i) sorted_[i] = columns_[order_[i]];
    TransposeNibbles(reinterpret_cast<const std::byte*>(sorted_.data()), 4 * packed_words_,
                     packed_words_, reinterpret_cast<std::byte*>(rows_.data()), 4 * packed_words_,
                     nullptr);
    for (int64_t i = 0; i < 4 * rows * packed_words_; i += sizeof(Bytes)) {
      Bytes bytes;
      std::memcpy(&bytes, rows_.data() + i, sizeof(bytes));
      StorePast(to + i, bytes);
    }
  }

 private:
  const int64_t inputs_;
  const int64_t words_;            // of a canonical row
  const int64_t packed_words_;     // of a packed one
  std::vector<uint32_t> order_;    // [8, packed_words_] indices of columns_
  std::vector<uint32_t> columns_;  // [8, words_], and a zero
  std::vector<uint32_t> sorted_;   // [8, packed_words_]
  std::vector<uint8_t> rows_;      // [8, 4 * packed_words_]
  std::vector<uint8_t> padded_;    // [8, 4 * words_], where rows are no whole words
};

// Of the codes that a source is asked for at once, where it has to give whole rows: they stay in
// the second level of a cache.
constexpr int64_t kWholeRowsBytes = int64_t{512} << 10;

CodeTile TileOf(const CodeSource& source, const PackedWeight& packed) {
  CodeTile tile = source.PreferredTile();
  if (packed.columns != nullptr) {
    tile.inputs = packed.k_padded;
    tile.rows = std::max<int64_t>(kWholeRowsBytes / (packed.k_padded / 2) / 32, 1) * 32;
  }
  tile.rows = std::min(tile.rows, CeilDiv(packed.spec.n, 32) * 32);
  tile.inputs = std::min(tile.inputs, packed.k_padded);
  return tile;
}

void PackFromSource(const CodeSource& source, const PackedWeight& packed, ColumnSorter* sorter,
                    uint8_t* row, uint8_t* to) {
  const WeightSpec& spec = packed.spec;
  const CodeTile most = TileOf(source, packed);
  // Rows a power of two apart would share a few places in the cache.
  const int64_t stride = most.inputs / 2 + 64;
  const auto scratch =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(most.rows * stride));
  const auto* const codes = reinterpret_cast<const uint8_t*>(scratch.get());
  CodeTile tile;
  for (tile.row = 0; tile.row < spec.n; tile.row += most.rows) {
    tile.rows = std::min(most.rows, spec.n - tile.row);
    for (tile.k = 0; tile.k < spec.k; tile.k += most.inputs) {
      tile.inputs = std::min(most.inputs, spec.k - tile.k);
      source.Read(tile, scratch.get(), stride);
      uint8_t* out = to + tile.row * packed.row_bytes + tile.k / 2;
      if (sorter != nullptr) {
        for (int64_t i = 0; i < tile.rows; i += ColumnSorter::kRows) {
          sorter->Pack(codes + i * stride, stride, std::min(ColumnSorter::kRows, tile.rows - i),
                       out + i * packed.row_bytes);
        }
        continue;
      }
      for (int64_t i = 0; i < tile.rows; ++i, out += packed.row_bytes) {
        PackRow<false, true>(codes + i * stride, 0, tile.inputs, row, out);
      }
    }
  }
}

}  // namespace

void PackCodes(const CanonicalWeight& weight, const PackedWeight& packed, uint8_t* to) {
  const WeightSpec& spec = weight.spec;
  const auto* from = reinterpret_cast<const uint8_t*>(weight.codes.data());
  const int64_t row_bytes = CeilDiv(spec.k, 2);
  std::vector<uint8_t> row(static_cast<size_t>(packed.k_padded), 0);
  std::unique_ptr<ColumnSorter> sorter;
  if (packed.columns != nullptr) sorter = std::make_unique<ColumnSorter>(packed);
  if (weight.code_source != nullptr) {
    PackFromSource(*weight.code_source, packed, sorter.get(), row.data(), to);
  } else if (sorter != nullptr) {
    for (int64_t n = 0; n < spec.n; n += ColumnSorter::kRows) {
      sorter->Pack(from + n * row_bytes, row_bytes, std::min(ColumnSorter::kRows, spec.n - n),
                   to + n * packed.row_bytes);
    }
  } else {
    for (int64_t n = 0; n < spec.n; ++n, to += packed.row_bytes) {
      if (packed.flat_runs()) {
        PackRow<true, false>(from, n * spec.k, spec.k, row.data(), to);
      } else {
        PackRow<false, false>(from + n * row_bytes, 0, spec.k, row.data(), to);
      }
    }
  }
  FinishStores();
}

}  // namespace nibble::cpu
