// Text from outside made fit for a line that people and programs read.
#ifndef NIBBLE_SERVER_LOG_ESCAPE_H_
#define NIBBLE_SERVER_LOG_ESCAPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::server {

// Bytes of the longest start of `text` that is well-formed UTF-8; text.size() when all of it is.
size_t Utf8PrefixBytes(std::string_view text);

// Appends `text` with the escapes of a JSON string: quotes, backslashes, line separators and
// controls. A byte that is not UTF-8 becomes the four characters \xNN; their backslash is escaped
// like any other, because JSON and logfmt know no escape for a byte. True when anything was
// escaped.
bool AppendEscaped(std::string_view text, std::string* out);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_LOG_ESCAPE_H_
