#include "server/log/log.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "spdlog/logger.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace nibble::server::log {
namespace {

// A value from outside (a name, a message) must not make a line without end.
constexpr size_t kMaxValueBytes = 4096;

spdlog::level::level_enum SpdlogLevel(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      break;
  }
  return spdlog::level::err;
}

std::string_view LevelName(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarn:
      return "warn";
    case Level::kError:
      break;
  }
  return "error";
}

spdlog::logger& Logger() {
  // Never destroyed: threads may log while the process ends.
  static auto* const logger = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    sink->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "ts=%Y-%m-%dT%H:%M:%S.%eZ %v", spdlog::pattern_time_type::utc, "\n"));
    auto* made = new spdlog::logger("nibble", std::move(sink));
    made->set_level(spdlog::level::info);
    return made;
  }();
  return *logger;
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Bytes of the well-formed UTF-8 sequence that `text` starts with and its code point; 0 bytes for a
// malformed one (overlong, surrogate, out of range or cut short; the Unicode Standard, table 3-7).
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

// Appends `value` bare where it is one plain word, else in quotes with the escapes of JSON. A byte
// that is not UTF-8 becomes the four characters \xNN: their backslash is itself escaped, because
// readers of logfmt know no escape for a byte.
void AppendValue(std::string_view value, std::string* line) {
  size_t omitted = 0;
  if (value.size() > kMaxValueBytes) {
    size_t keep = kMaxValueBytes;
    while (keep > kMaxValueBytes - 4 && IsContinuation(value[keep])) --keep;
    omitted = value.size() - keep;
    value = value.substr(0, keep);
  }
  bool quote = value.empty() || omitted > 0;
  std::string text;
  auto out = std::back_inserter(text);
  while (!value.empty()) {
    uint32_t code_point = 0;
    const size_t length = DecodeUtf8(value, &code_point);
    if (length == 0) {
      quote = true;
      fmt::format_to(out, "\\\\x{:02x}", static_cast<unsigned char>(value[0]));
      value.remove_prefix(1);
      continue;
    }
    quote = quote || code_point <= ' ' || code_point == '=' || code_point == '"' ||
            code_point == '\\' || IsControl(code_point);
    if (code_point == '"' || code_point == '\\') {
      text += '\\';
      text += static_cast<char>(code_point);
    } else if (code_point == '\n') {
      text += "\\n";
    } else if (code_point == '\t') {
      text += "\\t";
    } else if (code_point == '\r') {
      text += "\\r";
    } else if (IsControl(code_point)) {
      fmt::format_to(out, "\\u{:04x}", code_point);
    } else {
      text += value.substr(0, length);
    }
    value.remove_prefix(length);
  }
  if (omitted > 0) fmt::format_to(out, "... ({} more bytes)", omitted);
  if (quote) *line += '"';
  *line += text;
  if (quote) *line += '"';
}

}  // namespace

bool SetLevel(std::string_view name) {
  for (const Level level : {Level::kDebug, Level::kInfo, Level::kWarn, Level::kError}) {
    if (name == LevelName(level)) {
      Logger().set_level(SpdlogLevel(level));
      return true;
    }
  }
  return false;
}

bool Enabled(Level level) { return Logger().should_log(SpdlogLevel(level)); }

void Write(Level level, std::string_view event, std::initializer_list<Field> fields) {
  if (!Enabled(level)) return;
  std::string line = fmt::format("level={} event=", LevelName(level));
  AppendValue(event, &line);
  for (const Field& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    AppendValue(field.value, &line);
  }
  Logger().log(SpdlogLevel(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace nibble::server::log
