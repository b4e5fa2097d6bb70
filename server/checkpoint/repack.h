// From the INT4 layouts on disk to the canonical one: codes row-major [N, ceil(K/2)] with the even
// k in the low nibble, scales [N, G], zero points U8 [N, G]. Spans are not aligned.
#ifndef NIBBLE_SERVER_CHECKPOINT_REPACK_H_
#define NIBBLE_SERVER_CHECKPOINT_REPACK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/weight.h"

namespace nibble::checkpoint {

// words: I32 [ceil(K/8), N], the eight codes of a word along K from the low end (GPTQ).
HostBytes CodesFromColumnWords(std::span<const std::byte> words, int64_t n, int64_t k);

// words: I32 [K, N/8], column 8c + j of a word in nibble kAwqNibble[j] (AWQ GEMM). n % 8 == 0.
HostBytes CodesFromInterleavedWords(std::span<const std::byte> words, int64_t n, int64_t k);

// words: I32 [N, ceil(K/8)], the eight codes of a word along K from the low end
// (compressed-tensors).
HostBytes CodesFromRowWords(std::span<const std::byte> words, int64_t n, int64_t k);

// [rows, cols] elements of element_bytes to [cols, rows].
HostBytes Transposed(std::span<const std::byte> elements, int64_t rows, int64_t cols,
                     size_t element_bytes);

// Zero points as stored.
struct PackedZeros {
  enum class Layout {
    kAlongColumns,  // I32 [G, ceil(N/8)], from the low end (GPTQ)
    kInterleaved,   // I32 [G, N/8], AWQ's order
    kAlongRows,     // I32 [ceil(N/8), G], from the low end (compressed-tensors)
    kSigned,        // I8 [N, G], -8..7
  };
  Layout layout = Layout::kAlongColumns;
  std::span<const std::byte> data;
  int64_t n = 0;
  int64_t groups = 0;
  int add = 0;  // added to a field, modulo 16, to give the zero point: 1 for GPTQ v1

  // The stored field of output `row` and `group`, 0..15 (kSigned: its low four bits plus 8).
  int Field(int64_t row, int64_t group) const;
  int ZeroPoint(int64_t row, int64_t group) const { return (Field(row, group) + add) & 15; }
  // How many of the N*G fields have each value.
  std::array<int64_t, 16> Histogram() const;
  // U8 [N, G].
  HostBytes Unpacked() const;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_REPACK_H_
