#include "server/log/escape.h"

#include <iterator>

#include "fmt/format.h"

namespace nibble::server {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Bytes of the sequence that `text`, not empty, starts with, and its code point; 0 when malformed:
// overlong, a surrogate, out of range or cut short (the Unicode Standard, table 3-7).
size_t DecodeUtf8(std::string_view text, uint32_t* code_point) {
  const auto lead = static_cast<unsigned char>(text[0]);
  size_t length = 1;
  uint32_t value = lead;
  uint32_t least = 0;
  if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4, value = lead & 0x07, least = 0x10000;
  } else if (lead >= 0xE0 && lead < 0xF0) {
    length = 3, value = lead & 0x0F, least = 0x800;
  } else if (lead >= 0xC2 && lead < 0xE0) {
    length = 2, value = lead & 0x1F, least = 0x80;
  } else if (lead >= 0x80) {
    return 0;
  }
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[i])) return 0;
    value = value << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
  }
  if (value < least || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return 0;
  *code_point = value;
  return length;
}

// Controls of ASCII and Latin-1, and the line separators: what can end a line or drive a terminal.
bool IsControl(uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0) || code_point == 0x2028 ||
         code_point == 0x2029;
}

}  // namespace

size_t Utf8PrefixBytes(std::string_view text) {
  size_t good = 0;
  while (good < text.size()) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(text.substr(good), &code_point);
    if (length == 0) break;
    good += length;
  }
  return good;
}

bool AppendEscaped(std::string_view text, std::string* out) {
  bool escaped = false;
  while (!text.empty()) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(text, &code_point);
    if (length == 0) {
      fmt::format_to(std::back_inserter(*out), "\\\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (code_point == '"' || code_point == '\\') {
      *out += '\\';
      *out += static_cast<char>(code_point);
    } else if (code_point == '\n') {
      *out += "\\n";
    } else if (code_point == '\t') {
      *out += "\\t";
    } else if (code_point == '\r') {
      *out += "\\r";
    } else if (IsControl(code_point)) {
      fmt::format_to(std::back_inserter(*out), "\\u{:04x}", code_point);
    } else {
      *out += text.substr(0, length);
      text.remove_prefix(length);
      continue;
    }
    escaped = true;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return escaped;
}

}  // namespace nibble::server
