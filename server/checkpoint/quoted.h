// Names that come out of a file, made fit for an error message or a log line.
#ifndef NIBBLE_SERVER_CHECKPOINT_QUOTED_H_
#define NIBBLE_SERVER_CHECKPOINT_QUOTED_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble::checkpoint {

// `text` in single quotes, control characters replaced by '?', cut after 200 bytes.
inline std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 200;
  size_t shown = text.size();
  if (shown > kMaxBytes) {
    shown = kMaxBytes;
    // Not within a UTF-8 sequence: messages stay valid text.
    while (shown > 0 && (static_cast<unsigned char>(text[shown]) & 0xC0) == 0x80) --shown;
  }
  std::string out = "'";
  for (char c : text.substr(0, shown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  out += shown < text.size() ? "...'" : "'";
  return out;
}

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_QUOTED_H_
