// Layers chosen by name: "--include" and "--exclude" of everything that quantizes.
#ifndef NIBBLE_SERVER_CHECKPOINT_LAYER_FILTER_H_
#define NIBBLE_SERVER_CHECKPOINT_LAYER_FILTER_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::checkpoint {

// True where `pattern` matches all of `name`: '*' stands for any text, '?' for one byte, the rest
// for itself. Takes time proportional to the product of the lengths at most.
bool MatchesPattern(std::string_view pattern, std::string_view name);

// What is left as it is unless `include` is given: output heads, embeddings and the routers of
// mixtures of experts.
std::span<const std::string_view> DefaultExclusions();

struct LayerFilter {
  std::vector<std::string> include;  // patterns; none: all but the default exclusions
  std::vector<std::string> exclude;  // patterns; win over include

  bool Selects(std::string_view layer) const;
};

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_LAYER_FILTER_H_
