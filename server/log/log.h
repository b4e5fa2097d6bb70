// Structured logs on stderr, one line an event, logfmt: ts=2026-01-02T03:04:05.678Z level=info
// event=weight_ready name="m/a b" bytes=123. Never a payload, never a secret.
#ifndef NIBBLE_SERVER_LOG_LOG_H_
#define NIBBLE_SERVER_LOG_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "fmt/format.h"

namespace nibble::server::log {

enum class Level { kDebug, kInfo, kWarn, kError };

// A key and its value as text; quoted and escaped when written.
struct Field {
  template <typename T>
  Field(std::string_view k, const T& v) : key(k), value(fmt::format("{}", v)) {}
  std::string_view key;
  std::string value;
};

// "debug", "info", "warn", "error"; false for another word. Default info.
bool SetLevel(std::string_view name);
bool Enabled(Level level);

void Write(Level level, std::string_view event, std::initializer_list<Field> fields);
inline void Debug(std::string_view event, std::initializer_list<Field> fields = {}) {
  Write(Level::kDebug, event, fields);
}
inline void Info(std::string_view event, std::initializer_list<Field> fields = {}) {
  Write(Level::kInfo, event, fields);
}
inline void Warn(std::string_view event, std::initializer_list<Field> fields = {}) {
  Write(Level::kWarn, event, fields);
}
inline void Error(std::string_view event, std::initializer_list<Field> fields = {}) {
  Write(Level::kError, event, fields);
}

}  // namespace nibble::server::log

#endif  // NIBBLE_SERVER_LOG_LOG_H_
