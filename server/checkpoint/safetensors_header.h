// The JSON header of the safetensors container, read as a stream of events: nothing is built for a
// header that breaks a rule, and duplicate keys are seen.
#ifndef NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_HEADER_H_
#define NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace nibble::checkpoint {

// Limits of a header. The first is the format's; the others keep a small file from costing much.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxHeaderEntries = 262'144;
inline constexpr size_t kMaxRank = 64;
inline constexpr size_t kMaxIgnoredDepth = 32;
inline constexpr uint64_t kMaxDimension = uint64_t{1} << 62;

// One entry as written, before its numbers are checked against each other or the file.
struct HeaderEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Header {
  std::map<std::string, HeaderEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Reads `text`, the bytes of the header. kInvalidArgument names the entry and the rule.
absl::Status ReadHeader(std::string_view text, Header* header);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_SAFETENSORS_HEADER_H_
