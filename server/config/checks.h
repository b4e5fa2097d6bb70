// Checks of single values. Each answers what was expected of a wrong value, and nothing for a right
// one.
#ifndef NIBBLE_SERVER_CONFIG_CHECKS_H_
#define NIBBLE_SERVER_CONFIG_CHECKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::server {

using Expected = std::optional<std::string>;

Expected CheckAddress(std::string_view text);         // HOST:PORT, [V6]:PORT or unix:PATH
Expected CheckMetricsAddress(std::string_view text);  // HOST:PORT, [V6]:PORT or empty
Expected CheckBackend(std::string_view text);         // auto, cpu or cuda
Expected CheckDeviceId(std::string_view text);        // cpu:0, cuda:3
Expected CheckLogLevel(std::string_view text);        // debug, info, warn or error
Expected CheckModelName(std::string_view text);       // letters, digits, . _ - and /
Expected CheckQuantize(std::string_view text);        // NAME=FORMAT

// The parts of a checked NAME=FORMAT.
struct ModelFormat {
  std::string_view model;
  std::string_view format;
};
ModelFormat SplitQuantize(std::string_view text);

// The parts of a checked address; the port of unix:PATH is -1 and its host the whole text.
struct HostPort {
  std::string_view host;
  int port = -1;
};
HostPort SplitAddress(std::string_view address);
// Whether two listeners on these addresses would meet on one port.
bool Collide(std::string_view a, std::string_view b);

// A count of bytes: decimal digits and KiB, MiB, GiB, TiB or nothing. Empty for other text and for
// more than 64 bits.
std::optional<uint64_t> ParseBytes(std::string_view text);
// The text of the largest unit that is exact; ParseBytes reads it back.
std::string FormatBytes(uint64_t bytes);

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_CONFIG_CHECKS_H_
