#ifndef NIBBLE_SERVER_CONFIG_CONFIG_FILE_H_
#define NIBBLE_SERVER_CONFIG_CONFIG_FILE_H_

#include <string>

#include "server/config/options.h"

namespace nibble::server {

// A configuration is a page; what is larger than this is another kind of file.
inline constexpr size_t kMaxConfigFileBytes = size_t{1} << 20;

// Takes the options of a YAML or JSON file: one map of keys, each at most once, without anchors,
// aliases and tags. Faults name the file and the line.
void ReadConfigFile(const std::string& path, Draft* draft);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_CONFIG_CONFIG_FILE_H_
