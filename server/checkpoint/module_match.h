// The ways in which configurations name modules, matched against the names of layers. Regular
// expressions are matched in time linear in the name, so that a file cannot stall a load.
#ifndef NIBBLE_SERVER_CHECKPOINT_MODULE_MATCH_H_
#define NIBBLE_SERVER_CHECKPOINT_MODULE_MATCH_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace re2 {
class RE2;
}

namespace nibble::checkpoint {

class NamePattern {
 public:
  // kInvalidArgument: malformed, too long, or with what takes more than linear time (look-around,
  // back references).
  static absl::StatusOr<NamePattern> Compile(const std::string& expression);

  bool MatchesStart(std::string_view name) const;  // as Python's re.match: the end is free
  bool MatchesAnywhere(std::string_view name) const;
  // Steps that a match takes for a byte of the name at most.
  int64_t program_size() const;

 private:
  explicit NamePattern(std::shared_ptr<const re2::RE2> expression)
      : expression_(std::move(expression)) {}
  std::shared_ptr<const re2::RE2> expression_;
};

// A list of modules out of a configuration.
class ModuleList {
 public:
  enum class Rule : uint8_t {
    kTargets,     // compressed-tensors: exact, "re:" and an expression, or the class "Linear"
    kStartOrEnd,  // transformers: the name starts or ends with the entry, or starts matching it
    kSubstring,   // AutoAWQ
    kGlob,        // ModelOpt: '*' stands for anything
  };
  // From vague to specific.
  enum class Match : uint8_t { kNone, kClass, kPattern, kExact };

  // An entry that no layer can be matched with is kept in unusable().
  void Add(const std::string& entry, Rule rule);
  // How the list names the layer `name`, by its own name or by the one it has in a fused layer
  // (q_proj as qkv_proj). A trailing ".linear", the name of a wrapped module, is overlooked.
  Match Find(std::string_view name) const;
  const std::vector<std::string>& unusable() const { return unusable_; }
  bool empty() const;
  // Of all expressions together.
  int64_t program_size() const;
  // Entries that are tried one by one on every name.
  size_t patterns() const {
    return start_or_end_.size() + substrings_.size() + patterns_.size() + unusable_.size();
  }

 private:
  Match FindAs(std::string_view name) const;

  bool class_linear_ = false;
  std::set<std::string, std::less<>> exact_;
  std::vector<std::string> start_or_end_;
  std::vector<std::string> substrings_;
  std::vector<NamePattern> patterns_;
  std::vector<std::string> unusable_;
};

// The name of the fused layer that `name` is a part of by custom (q_proj, k_proj, v_proj in
// qkv_proj; gate_proj, up_proj in gate_up_proj); empty for other names.
std::string FusedName(std::string_view name);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_MODULE_MATCH_H_
