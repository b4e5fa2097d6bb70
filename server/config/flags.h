#ifndef NIBBLE_SERVER_CONFIG_FLAGS_H_
#define NIBBLE_SERVER_CONFIG_FLAGS_H_

#include <string>
#include <vector>

#include "server/config/options.h"

namespace nibble::server {

// A flag of the command line and its value.
struct FlagUse {
  const Option* option;
  std::string value;
};

// Splits the command line into flags: --name=value, --name value, and --name for a switch. What is
// no flag, or unknown, or lacks its value is a fault.
std::vector<FlagUse> SplitFlags(int argc, const char* const* argv, Faults* faults);

// Takes the flags in order: the last use of one counts, the uses of a list add up and replace what
// a file said.
void TakeFlags(const std::vector<FlagUse>& uses, Draft* draft);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_CONFIG_FLAGS_H_
