#include "server/log/log.h"

#include <iterator>
#include <memory>

#include "server/log/escape.h"
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

bool IsPlainWord(std::string_view value) {
  return !value.empty() && value.find_first_of(" =\"\\") == std::string_view::npos;
}

// Appends `value` bare where it is one plain word, else in quotes and escaped.
void AppendValue(std::string_view value, std::string* line) {
  size_t omitted = 0;
  if (value.size() > kMaxValueBytes) {
    omitted = value.size() - kMaxValueBytes;
    value = value.substr(0, kMaxValueBytes);
  }
  std::string text;
  const bool escaped = AppendEscaped(value, &text);
  if (omitted == 0 && !escaped && IsPlainWord(value)) {
    *line += text;
  } else if (omitted == 0) {
    fmt::format_to(std::back_inserter(*line), "\"{}\"", text);
  } else {
    fmt::format_to(std::back_inserter(*line), "\"{}... ({} more bytes)\"", text, omitted);
  }
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
