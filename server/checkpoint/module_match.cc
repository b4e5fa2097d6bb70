#include "server/checkpoint/module_match.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "re2/re2.h"
#include "server/checkpoint/quoted.h"

namespace nibble::checkpoint {
namespace {

constexpr size_t kMaxExpressionBytes = 4096;
// The largest list of patterns takes 64 MiB.
constexpr int64_t kMaxAutomatonBytes = int64_t{128} << 10;
constexpr std::string_view kWrapper = ".linear";

re2::StringPiece Piece(std::string_view text) { return {text.data(), text.size()}; }

std::string_view Unwrapped(std::string_view name) {
  if (name.ends_with(kWrapper)) name.remove_suffix(kWrapper.size());
  return name;
}

}  // namespace

absl::StatusOr<NamePattern> NamePattern::Compile(const std::string& expression) {
  if (expression.size() > kMaxExpressionBytes) {
    return absl::InvalidArgumentError(
        fmt::format("expected an expression of at most {} bytes, "
                    "received {}",
                    kMaxExpressionBytes, expression.size()));
  }
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMaxAutomatonBytes);
  auto compiled = std::make_shared<const re2::RE2>(expression, options);
  if (!compiled->ok()) {
    return absl::InvalidArgumentError(
        fmt::format("expected a regular expression without look-around and back references, "
                    "received {}: {}",
                    Quoted(expression), compiled->error()));
  }
  return NamePattern(std::move(compiled));
}

bool NamePattern::MatchesStart(std::string_view name) const {
  return expression_->Match(Piece(name), 0, name.size(), re2::RE2::ANCHOR_START, nullptr, 0);
}

bool NamePattern::MatchesAnywhere(std::string_view name) const {
  return expression_->Match(Piece(name), 0, name.size(), re2::RE2::UNANCHORED, nullptr, 0);
}

int64_t NamePattern::program_size() const { return expression_->ProgramSize(); }

void ModuleList::Add(const std::string& entry, Rule rule) {
  std::string expression;
  switch (rule) {
    case Rule::kSubstring:
      if (!entry.empty()) substrings_.push_back(entry);
      return;
    case Rule::kStartOrEnd:
      if (!entry.empty()) start_or_end_.push_back(entry);
      return;
    case Rule::kTargets:
      if (entry == "Linear") {
        class_linear_ = true;
        return;
      }
      if (!entry.starts_with("re:")) {
        exact_.emplace(Unwrapped(entry));
        return;
      }
      expression = entry.substr(3);
      break;
    case Rule::kGlob:
      for (std::string_view rest = entry;;) {
        const size_t star = rest.find('*');
        expression += re2::RE2::QuoteMeta(Piece(rest.substr(0, star)));
        if (star == std::string_view::npos) break;
        expression += ".*";
        rest.remove_prefix(star + 1);
      }
      expression += "$";
      break;
  }
  absl::StatusOr<NamePattern> pattern = NamePattern::Compile(expression);
  if (pattern.ok()) {
    patterns_.push_back(*std::move(pattern));
  } else {
    unusable_.push_back(entry);
  }
}

bool ModuleList::empty() const {
  return !class_linear_ && exact_.empty() && start_or_end_.empty() && substrings_.empty() &&
         patterns_.empty();
}

int64_t ModuleList::program_size() const {
  int64_t size = 0;
  for (const NamePattern& pattern : patterns_) size += pattern.program_size();
  return size;
}

ModuleList::Match ModuleList::FindAs(std::string_view name) const {
  if (exact_.contains(name)) return Match::kExact;
  const auto starts_or_ends = [&](const std::string& entry) {
    return name.starts_with(entry) || name.ends_with(entry);
  };
  const auto holds = [&](const std::string& entry) { return name.find(entry) != name.npos; };
  const auto matches = [&](const NamePattern& pattern) { return pattern.MatchesStart(name); };
  if (std::any_of(start_or_end_.begin(), start_or_end_.end(), starts_or_ends) ||
      std::any_of(substrings_.begin(), substrings_.end(), holds) ||
      std::any_of(patterns_.begin(), patterns_.end(), matches)) {
    return Match::kPattern;
  }
  return Match::kNone;
}

ModuleList::Match ModuleList::Find(std::string_view name) const {
  Match found = FindAs(name);
  if (const std::string fused = FusedName(name); !fused.empty()) {
    found = std::max(found, FindAs(fused));
  }
  return found == Match::kNone && class_linear_ ? Match::kClass : found;
}

std::string FusedName(std::string_view name) {
  const size_t dot = name.rfind('.');
  const size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
  const std::string_view last = name.substr(begin);
  std::string_view fused;
  if (last == "q_proj" || last == "k_proj" || last == "v_proj") fused = "qkv_proj";
  if (last == "gate_proj" || last == "up_proj") fused = "gate_up_proj";
  if (fused.empty()) return "";
  return fmt::format("{}{}", name.substr(0, begin), fused);
}

}  // namespace nibble::checkpoint
