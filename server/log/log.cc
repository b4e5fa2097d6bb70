#include "server/log/log.h"

#include <iterator>
#include <memory>

#include "server/log/utf8.h"
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
    omitted = value.size() - kMaxValueBytes;
    value = value.substr(0, kMaxValueBytes);
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
