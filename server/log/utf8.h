// Well-formed UTF-8 as the Unicode Standard, table 3-7, defines it.
#ifndef NIBBLE_SERVER_LOG_UTF8_H_
#define NIBBLE_SERVER_LOG_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nibble::server {

// Bytes of the sequence that `text`, not empty, starts with, and its code point; 0 when malformed:
// overlong, a surrogate, out of range or cut short.
size_t DecodeUtf8(std::string_view text, uint32_t* code_point);

// Bytes of the longest well-formed start of `text`; text.size() when all of it is.
size_t Utf8PrefixBytes(std::string_view text);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_LOG_UTF8_H_
