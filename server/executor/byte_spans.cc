#include "server/executor/byte_spans.h"

#include <algorithm>
#include <cstring>

namespace nibble::server {

void ByteSpans::CopyTo(uint64_t offset, uint64_t bytes, std::byte* to) const {
  if (bytes == 0) return;
  auto span = std::upper_bound(
      spans_.begin(), spans_.end(), offset,
      [](uint64_t position, const Span& candidate) { return position < candidate.begin; });
  for (--span; bytes > 0; ++span) {
    const uint64_t end = span + 1 == spans_.end() ? size_ : (span + 1)->begin;
    const uint64_t copied = std::min(bytes, end - offset);
    std::memcpy(to, span->data + (offset - span->begin), copied);
    to += copied;
    offset += copied;
    bytes -= copied;
  }
}

}  // namespace nibble::server
