#include "server/log/utf8.h"

namespace nibble::server {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

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

}  // namespace nibble::server
