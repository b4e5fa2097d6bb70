#include "server/checkpoint/layer_filter.h"

#include <algorithm>
#include <array>

namespace nibble::checkpoint {
namespace {

constexpr std::array<std::string_view, 8> kDefaultExclusions = {
    "lm_head", "*.lm_head", "embed_out",  "*embed_tokens",
    "*.gate",  "*.router",  "*.router.*", "*.shared_expert_gate"};

template <class Patterns>
bool AnyMatches(const Patterns& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](std::string_view pattern) { return MatchesPattern(pattern, name); });
}

}  // namespace

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  // Where to go on from after a mismatch: the last '*' takes one byte more.
  size_t star = std::string_view::npos;
  size_t star_end = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::span<const std::string_view> DefaultExclusions() { return kDefaultExclusions; }

bool LayerFilter::Selects(std::string_view layer) const {
  const bool included =
      include.empty() ? !AnyMatches(kDefaultExclusions, layer) : AnyMatches(include, layer);
  return included && !AnyMatches(exclude, layer);
}

}  // namespace nibble::checkpoint
