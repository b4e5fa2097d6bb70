// The faults found in a configuration, reported all at once.
#ifndef NIBBLE_SERVER_CONFIG_FAULTS_H_
#define NIBBLE_SERVER_CONFIG_FAULTS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace nibble::server {

// `text` in quotes, escaped, and cut short when it is long.
std::string Quote(std::string_view text);

class Faults {
 public:
  // A hostile file could hold as many faults as bytes; past this many they are only counted.
  static constexpr size_t kMaxListed = 50;

  bool empty() const { return count_ == 0; }
  // Whether one more fault would be listed.
  bool listing() const { return lines_.size() < kMaxListed; }
  // "WHERE: WHAT", one line.
  void Add(std::string_view where, std::string_view what);
  // "WHERE: expected EXPECTED, received RECEIVED"
  void AddMismatch(std::string_view where, std::string_view expected, std::string_view received);
  // kInvalidArgument, one fault a line; OK when there is none.
  absl::Status ToStatus() const;

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_CONFIG_FAULTS_H_
