// What tells one build of the server's kernels from another.
#ifndef NIBBLE_SERVER_AUTOTUNE_BUILD_ID_H_
#define NIBBLE_SERVER_AUTOTUNE_BUILD_ID_H_

#include <string>
#include <string_view>

namespace nibble::server {

// `version`, and the linker's build ids of the program and of the CUDA module where it is open.
std::string BuildId(std::string_view version);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_AUTOTUNE_BUILD_ID_H_
