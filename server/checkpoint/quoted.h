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
  std::string out = "'";
  for (char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  out += text.size() > kMaxBytes ? "...'" : "'";
  return out;
}

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_QUOTED_H_
