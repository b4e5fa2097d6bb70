// Matrices of 4-bit codes, turned by their columns.
#ifndef NIBBLE_NIBBLES_H_
#define NIBBLE_NIBBLES_H_

#include <cstddef>
#include <cstdint>

namespace nibble {

// from: eight rows of `count` 32-bit words, little-endian and not aligned, rows `from_stride` bytes
// apart. Nibble j of word c in row i becomes nibble i of word c in row j of `to`, rows `to_stride`
// bytes apart, not aligned either. next: rows like `from` that are read after them and are fetched
// into the cache meanwhile; may be null.
void TransposeNibbles(const std::byte* from, int64_t from_stride, int64_t count, std::byte* to,
                      int64_t to_stride, const std::byte* next);

}  // namespace nibble

#endif  // NIBBLE_NIBBLES_H_
