// From the INT4 layouts on disk to the canonical one: codes row-major [N, ceil(K/2)] with the even
// k in the low nibble, scales [N, G], zero points U8 [N, G]. Spans are not aligned.
#ifndef NIBBLE_SERVER_CHECKPOINT_REPACK_H_
#define NIBBLE_SERVER_CHECKPOINT_REPACK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/weight.h"

namespace nibble::checkpoint {

// Each writes the codes of `tile` to `out`, ceil(tile.inputs / 2) bytes a row, rows `stride` bytes
// apart. tile.k is a multiple of 8. `past`: past the caches, for what is not read again soon.
// words: I32 [ceil(K/8), N], the eight codes of a word along K from the low end (GPTQ).
void CodesFromColumnWords(std::span<const std::byte> words, int64_t n, const CodeTile& tile,
                          std::byte* out, int64_t stride, bool past);
// words: I32 [K, N/8], column 8c + j of a word in nibble kAwqNibble[j] (AWQ GEMM). n, tile.row and
// tile.rows are multiples of 8.
void CodesFromInterleavedWords(std::span<const std::byte> words, int64_t n, const CodeTile& tile,
                               std::byte* out, int64_t stride, bool past);

// Tiles of the fastest size: what is read is worth fetching ahead, what is written stays in a
// second-level cache.
inline constexpr CodeTile kColumnWordsTile = {.rows = 512, .inputs = 1024};
inline constexpr CodeTile kInterleavedWordsTile = {.rows = 1024, .inputs = 256};

// Fills `codes`, [N, ceil(K/2)] bytes.
// words: I32 [N, ceil(K/8)], the eight codes of a word along K from the low end
// (compressed-tensors).
void CodesFromRowWords(std::span<const std::byte> words, int64_t n, int64_t k,
                       std::span<std::byte> codes);

// [rows, cols] elements of 2 or 4 bytes to [cols, rows].
void Transpose(std::span<const std::byte> elements, int64_t rows, int64_t cols,
               size_t element_bytes, std::span<std::byte> out);

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
  // How many of the N*G fields have `value`.
  int64_t Count(int value) const;
  // Fills `out`, U8 [N, G].
  void Unpack(std::span<std::byte> out) const;

 private:
  // The whole words of a row of [G, N/8].
  void UnpackWords(std::span<std::byte> out) const;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_REPACK_H_
