// The whole program.
#ifndef NIBBLE_CLIENT_LOAD_PROGRAM_H_
#define NIBBLE_CLIENT_LOAD_PROGRAM_H_

#include <string>
#include <vector>

#include "client/cpp/cli/session.h"

namespace nibble::load {

// Parses `arguments` (without the program's name), runs, and reports. 0: done; 1: errors above
// --max-error-share, wrong answers, or no server; 2: wrong usage.
int RunProgram(const std::vector<std::string>& arguments, const cli::Io& io);

}  // namespace nibble::load

#endif  // NIBBLE_CLIENT_LOAD_PROGRAM_H_
