// Bytes that lie in several places, read as if they were one after another: the slices of a message
// as the transport received them.
#ifndef NIBBLE_SERVER_EXECUTOR_BYTE_SPANS_H_
#define NIBBLE_SERVER_EXECUTOR_BYTE_SPANS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::server {

// Owns the list, not the bytes.
class ByteSpans {
 public:
  ByteSpans() = default;
  explicit ByteSpans(std::span<const std::byte> bytes) { Append(bytes); }

  void Append(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    spans_.push_back({size_, bytes.data()});
    size_ += bytes.size();
  }
  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t span_count() const { return spans_.size(); }

  // Copies bytes [offset, offset + bytes), which must be there, to `to`.
  void CopyTo(uint64_t offset, uint64_t bytes, std::byte* to) const;

 private:
  struct Span {
    uint64_t begin = 0;  // position of the first byte
    const std::byte* data = nullptr;
  };
  std::vector<Span> spans_;
  uint64_t size_ = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_EXECUTOR_BYTE_SPANS_H_
